"""A model that computes on the processor, as what runs steps sees it."""

from typing import Protocol

from engine.models.config import ModelConfig
from kernels.arrays import Array, Floats, Ints
from kernels.host import HostOps, StepRows


class HostModel(Protocol):
    """Numpy arrays in, numpy arrays out. Nothing here knows requests: a step is token ids and where they stand."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def ops(self) -> HostOps: ...

    @property
    def reads_past_context(self) -> bool:
        """Whether slots of a row's last block that lie past its context have to hold finite numbers."""
        ...

    def allocate_kv(self, num_blocks: int) -> Array:
        """KV memory [layers, blocks, ...], all finite, in whatever form the model keeps it."""
        ...

    def embed(self, token_ids: Ints) -> Array:
        """The table's rows [T, H] of tokens int64 [T], in the compute dtype."""
        ...

    def use_table_of(self, other: "HostModel") -> None:
        """From now on look tokens up in the table of another model, which has the same rows, and where the head is tied
        compute logits with it; both models tie it or neither. What this one had instead is given back."""
        ...

    def forward(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        """Hidden states [T, H] of a step's tokens int64 [T], normed for the head, in the compute dtype. Writes their KV
        into `kv`.

        `wanted`, int64 [W], ascending: of these tokens alone, [W, H]. Of each row they are the last, and at least one.
        """
        ...

    def logits(self, hidden: Array) -> Floats:
        """float32 [T, V] from hidden states [T, H]."""
        ...
