"""The interface of adapters on a model's device."""

from typing import Any, Protocol

from torch import Tensor

from kernels.adapters import AdaptedProduct, AdapterWeights, PackedAdapter


class StepAdapters(Protocol):
    """The adapters of a step's tokens, on the model's device."""

    def add(self, layer: int, product: AdaptedProduct, y: Tensor, x: Tensor) -> Tensor:
        """y [T, N], the product of x [T, K], plus what the adapters add; y may be overwritten. See
        `kernels.reference_adapters.add_low_rank`."""
        ...


class DeviceAdapters(Protocol):
    """Memory for the adapters of one model, in slots at fixed addresses."""

    def pack(self, weights: AdapterWeights) -> PackedAdapter:
        """An adapter in this memory's format, on the host. May be called by any thread.

        Raises:
            ValueError: the adapter does not fit the model or the slots.
        """
        ...

    def put(self, slot: int, packed: Any | None) -> None:
        """Begin to replace the adapter of a slot; None: empty it. Steps launched before read what was there. No step
        may use the slot before it `is_resident`."""
        ...

    def is_resident(self, slot: int) -> bool:
        """Whether the slot holds the adapter that was put last. May be called by any thread; does not wait."""
        ...

    def of_step(self, rows: Tensor, token_rows: Tensor, slot_mapping: Tensor, adapters: Tensor) -> StepAdapters:
        """The adapters of a step's tokens: see `kernels.reference_adapters.token_adapters`. The launches depend on the
        number of tokens alone."""
        ...
