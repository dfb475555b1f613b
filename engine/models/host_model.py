"""The interface of a model that computes on the CPU."""

from typing import Any, Protocol, runtime_checkable

from engine.models.config import ModelConfig
from kernels.adapters import AdapterWeights, PackedAdapter
from kernels.arrays import Array, Flags, Floats, Ints
from kernels.cpu.native.adapter_packing import ModelLayout
from kernels.host import HostColumns, HostOps, StepRows


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

    def allocate_states(self, num_slots: int) -> Floats:
        """Recurrent states float32 [slots, layers, words], of the layers that have some: see `kernels.delta`."""
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

    def settle_drafts(self, rows: StepRows, accepted: Ints) -> None:
        """Advance the states of the rows with drafts of the last `forward`, in order, by their tokens before the drafts
        and the `accepted` ones, int64. Only for models with states, after each step that has such rows."""
        ...

    def logits(self, hidden: Array) -> Floats:
        """float32 [T, V] from hidden states [T, H]."""
        ...

    def allocate_adapters(self, slots: int) -> None:
        """Make slots for adapters, empty; once, before the first step whose rows have some."""
        ...

    @property
    def adapter_layout(self) -> ModelLayout | None:
        """The layout by which another process packs adapters for this model; None: only the model can."""
        ...

    def pack_adapter(self, weights: AdapterWeights) -> PackedAdapter:
        """An adapter in the model's own format. On any thread, also while another computes a step.

        Raises:
            ValueError: the adapter does not fit the model.
        """
        ...

    def put_adapter(self, slot: int, packed: Any | None) -> None:
        """Fill a slot with a packed adapter, or empty it, between steps. A slot that a step's row has must be
        filled."""
        ...


@runtime_checkable
class DrawsTokens(Protocol):
    """A `HostModel` whose head is in several processes, each of which draws from its part of the vocabulary."""

    def draw(self, hidden: Array, columns: HostColumns) -> tuple[Ints, Flags]:
        """Tokens int64 [D], and whether their logits are finite, from hidden states [D, H]: as `HostOps.sample` and
        `finite_rows` of their `logits`. The columns have no thresholds."""
        ...


def allocate_states(config: ModelConfig, ops: HostOps, num_slots: int) -> Floats:
    """See `HostModel.allocate_states`."""
    assert config.linear is not None, "a model without recurrent layers has no states"
    return ops.allocate_states(num_slots, config.state_layers, config.linear.shape.words)


def state_bytes(config: ModelConfig) -> int:
    """Bytes of a sequence's recurrent state; 0 for a model without."""
    return 0 if config.linear is None else 4 * config.state_layers * config.linear.shape.words
