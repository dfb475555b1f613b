"""The definition of a product with adapters: see `kernels.adapters`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from kernels.adapter_sizes import LayerSizes, check_adapter
from kernels.adapters import NO_ADAPTER, AdaptedProduct, AdapterWeights, Parts
from kernels.step import Row


def add_low_rank(y: Tensor, x: Tensor, adapters: Mapping[int, Parts], slots: Sequence[int]) -> Tensor:
    """y [T, N] plus what the adapter of each token adds, in the dtype of y.

    x: [T, K], the product's inputs. adapters: by slot. slots: of each token, or `NO_ADAPTER`. Each token's sum is
    computed in float32, added to its y in float32, and rounded once. It depends on that token alone: a token has the
    same bits in any step. Backends may round `down @ x` to their compute dtype, within `reference`'s tolerances.
    """
    out = y.to(torch.float32, copy=True)
    for token, slot in enumerate(slots):
        if slot == NO_ADAPTER:
            continue
        for part in adapters[slot]:
            down, up = (torch.from_numpy(weight).float().to(y.device) for weight in (part.down, part.up))
            added = up @ (down @ x[token].float())
            out[token, part.first : part.first + len(added)] += added
    return out.to(y.dtype)


def token_adapters(rows: Tensor, token_rows: Tensor, slot_mapping: Tensor, adapters: Tensor) -> list[int]:
    """The adapter's slot of each token, or `NO_ADAPTER`.

    rows: encoded, int32 [R, 8]; see `kernels.step.Row`. token_rows: int32 [T], index of each token's row. slot_mapping:
    int64 [T]; a token whose KV is not stored is padding and has none. adapters: int32 [S], by the row's slot.
    """
    slots, places = rows[:, Row._fields.index("slot")].tolist(), slot_mapping.tolist()
    of_slots = adapters.tolist()
    of_rows = [NO_ADAPTER if slot < 0 else of_slots[slot] for slot in slots]
    return [of_rows[row] if place >= 0 else NO_ADAPTER for row, place in zip(token_rows.tolist(), places, strict=True)]


class ReferenceStepAdapters:
    """The adapters of a step's tokens, by slot."""

    def __init__(self, adapters: Mapping[int, AdapterWeights], slots: Sequence[int]) -> None:
        self._adapters, self._slots = adapters, slots

    def add(self, layer: int, product: AdaptedProduct, y: Tensor, x: Tensor) -> Tensor:
        of_product = {slot: adapter.layers[layer].parts(product) for slot, adapter in self._adapters.items()}
        return add_low_rank(y, x, of_product, self._slots)


class ReferenceAdapters:
    """A `kernels.device_adapters.DeviceAdapters` of the functions of this file."""

    def __init__(self, layers: Sequence[LayerSizes], slots: int, max_rank: int) -> None:
        self._layers, self._slots, self._max_rank = layers, slots, max_rank
        self._adapters: dict[int, AdapterWeights] = {}

    def pack(self, weights: AdapterWeights) -> AdapterWeights:
        check_adapter(weights, self._layers)
        if weights.rank > self._max_rank:
            raise ValueError(f"an adapter of rank {weights.rank}; the maximum is {self._max_rank}")
        return weights

    def put(self, slot: int, packed: AdapterWeights | None) -> None:
        assert 0 <= slot < self._slots, f"slot {slot} of {self._slots}"
        if packed is None:
            self._adapters.pop(slot, None)
        else:
            self._adapters[slot] = packed

    def is_resident(self, slot: int) -> bool:
        return slot in self._adapters

    def of_step(
        self, rows: Tensor, token_rows: Tensor, slot_mapping: Tensor, adapters: Tensor
    ) -> ReferenceStepAdapters:
        return ReferenceStepAdapters(self._adapters, token_adapters(rows, token_rows, slot_mapping, adapters))
