"""The interface of a model that computes on the CPU."""

from typing import Protocol

from engine.models.config import ModelConfig
from kernels.arrays import Array, Floats, Ints
from kernels.host import HostOps, StepRows


class HostModel(Protocol):
    """A model over numpy arrays. It does not know requests: a step is token ids and the rows they belong to."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def ops(self) -> HostOps: ...

    @property
    def reads_past_context(self) -> bool:
        """Whether KV slots past a row's context, in its last block, must hold finite numbers."""
        ...

    @property
    def expert_tokens(self) -> Ints:
        """Tokens that each expert has computed since loading, over all layers, int64 [experts]; empty without experts.
        May be read during a step."""
        ...

    def allocate_kv(self, num_blocks: int) -> Array:
        """KV memory [layers, blocks, ...] in the model's own format, all values finite."""
        ...

    def embed(self, token_ids: Ints) -> Array:
        """Embedding rows [T, H] of tokens int64 [T], in the compute dtype."""
        ...

    def use_table_of(self, other: "HostModel") -> None:
        """Replace the embedding table by that of another model with the same rows, and a tied head by the other's; both
        models tie it or neither does. Frees the memory of the replaced table."""
        ...

    def forward(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        """Hidden states [T, H] of a step's tokens int64 [T], normed for the head, in the compute dtype. Writes their KV
        into `kv`.

        `wanted`, int64 [W], ascending: return the states of these tokens only, [W, H]. They are the last tokens of each
        row, at least one of each.
        """
        ...

    def logits(self, hidden: Array) -> Floats:
        """float32 [T, V] from hidden states [T, H]."""
        ...
