"""The model of an engine whose ranks each have a part: a `HostModel` that makes each call on all ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from engine.errors import RankLost
from engine.execution.parallel.adapter_words import adapter_words
from engine.execution.parallel.adapters import adapted_sizes, cut_adapter
from engine.execution.parallel.channel import Call, Frame
from engine.execution.parallel.rank_model import RankModel, Result
from engine.execution.parallel.rank_processes import RankProcesses
from engine.execution.parallel.shards import places
from engine.execution.parallel.step_words import draw_words, held_draw_words, step_words
from engine.models.config import ModelConfig
from engine.models.host_model import HostModel
from kernels.adapter_sizes import check_adapter
from kernels.adapters import AdapterWeights
from kernels.arrays import Array, Flags, Floats, Ints, int_array
from kernels.cpu.torch_host import TorchHost
from kernels.host import HostColumns, StepRows

if TYPE_CHECKING:
    from kernels.ops import Ops

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CutAdapter:
    """The parts of an adapter, by rank."""

    parts: tuple[AdapterWeights, ...]

    @property
    def bytes(self) -> int:
        """Size of the numbers of all parts."""
        return sum(part.bytes for part in self.parts)


class HeldDraws(NamedTuple):
    """Draws from hidden states of a step that the ranks of the last stage hold: their `indices`, int64 [D], and the
    `columns` of draws that the ranks make; None: their logits are wanted."""

    indices: Ints
    columns: HostColumns | None


class Computed(NamedTuple):
    """The results of a step on rank 0: hidden states [W, H]; tokens int64 [D] with flags whether their logits are
    finite; or logits float32 [D, V]."""

    hidden: Array
    drawn: tuple[Ints, Flags] | None
    logits: Floats | None


class ParallelModel:
    """A `HostModel` on several ranks, of which this process is rank 0. Each call goes to the others first, then runs
    here; the collectives of the network keep them together. A call that fails leaves the ranks apart, so it ends
    them."""

    reads_past_context = True
    adapter_layout = None

    def __init__(self, config: ModelConfig, part: RankModel, ranks: RankProcesses, number: int, ops: "Ops") -> None:
        """`config`: of the whole model. `part`: rank 0's. `number`: the model's, of `RankProcesses.load`."""
        self.config = config
        self.ops = _ParallelHost(ops, self)
        self._part, self._ranks, self._number = part, ranks, number
        self._sizes = adapted_sizes(config)

    @property
    def stages(self) -> int:
        """As many steps can be begun before the result of the first one is waited for."""
        return self._ranks.sizes.stages

    @property
    def expert_tokens(self) -> Ints:
        return self._part.expert_tokens

    def allocate_kv(self, num_blocks: int) -> Array:
        return self.on_all(Call.ALLOCATE_KV, int_array([num_blocks]), lambda: self._part.allocate_kv(num_blocks))

    def allocate_states(self, num_slots: int) -> Floats:
        return self.on_all(Call.ALLOCATE_STATES, int_array([num_slots]), lambda: self._part.allocate_states(num_slots))

    def embed(self, token_ids: Ints) -> Array:
        return self.on_all(Call.EMBED, token_ids, lambda: self._part.embed(token_ids))

    def use_table_of(self, other: HostModel) -> None:
        raise AssertionError("the table of a model on several ranks is cut")

    def forward(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        words = step_words(token_ids, rows, wanted)
        return self.on_all(Call.FORWARD, words, lambda: self._part.forward(token_ids, rows, wanted))

    def begin(
        self, token_ids: Ints, rows: StepRows, wanted: Ints | None, draws: HeldDraws | None
    ) -> Callable[[], Computed]:
        """Begin a step of a pipeline, with its draws: all its calls follow one another on each rank, and steps that are
        begun later come after them. Returns how to wait for the results, in the order of the steps."""
        words = step_words(token_ids, rows, wanted)
        hidden = self.on_all(Call.FORWARD, words, lambda: self._part.begin_forward(token_ids, rows, wanted))
        logits: Result[Floats] | None = None
        drawn: Result[tuple[Ints, Flags]] | None = None
        if draws is not None and (columns := draws.columns) is not None:
            words, data = held_draw_words(draws.indices, columns)
            drawn = self.on_all(Call.DRAW_HELD, words, lambda: self._part.draw_held(draws.indices, columns), data)
        elif draws is not None:
            logits = self.on_all(Call.LOGITS_HELD, draws.indices, lambda: self._part.logits_held(draws.indices))

        def result() -> Computed:
            states = hidden()
            return Computed(states, None if drawn is None else drawn(), None if logits is None else logits())

        return lambda: self._guarded(result)

    def settle_drafts(self, rows: StepRows, accepted: Ints) -> None:
        self.on_all(Call.SETTLE_DRAFTS, accepted, lambda: self._part.settle_drafts(accepted))

    def logits(self, hidden: Array) -> Floats:
        logits = self.on_all(Call.LOGITS, int_array(hidden.shape), lambda: self._part.logits(hidden))
        assert logits is not None, "rank 0 gathers the logits"
        return logits

    def draw(self, hidden: Array, columns: HostColumns) -> tuple[Ints, Flags]:
        """See `engine.models.host_model.DrawsTokens`."""
        words, data = draw_words(hidden, columns)
        drawn = self.on_all(Call.DRAW, words, lambda: self._part.draw(hidden, columns), data)
        assert drawn is not None, "rank 0 knows what all have drawn"
        return drawn

    def allocate_adapters(self, slots: int) -> None:
        self.on_all(Call.ALLOCATE_ADAPTERS, int_array([slots]), lambda: self._part.allocate_adapters(slots))

    def pack_adapter(self, weights: AdapterWeights) -> CutAdapter:
        check_adapter(weights, self._sizes)
        return CutAdapter(tuple(cut_adapter(weights, self.config, place) for place in places(self._ranks.sizes)))

    def put_adapter(self, slot: int, packed: CutAdapter | None) -> None:
        for place in places(self._ranks.sizes):
            part = None if packed is None else packed.parts[place.rank]
            if place.rank == 0:
                self._part.put_adapter(slot, part)
                continue
            words, data = adapter_words(part)
            frame = Frame(Call.PUT_ADAPTER, self._number, np.concatenate((int_array([slot]), words)), data)
            self._ranks.send_to(place, frame.encoded())

    def on_all(self, call: Call, words: Ints, here: Callable[[], T], data: bytes = b"") -> T:
        """Make a call on all ranks; `here`: on this one.

        Raises:
            RankLost: a rank has ended, or the call failed, whatever the reason.
        """
        self._ranks.send(Frame(call, self._number, words, data))
        return self._guarded(here)

    def _guarded(self, here: Callable[[], T]) -> T:
        try:
            return here()
        except RankLost:
            raise
        except Exception as error:
            raise self._ranks.failure(error) from error


class _ParallelHost(TorchHost):
    """The ops of rank 0, of which those on KV memory run on all ranks."""

    def __init__(self, ops: "Ops", model: ParallelModel) -> None:
        super().__init__(ops)
        self._model = model

    def clear_blocks(self, kv: Array, block_ids: Ints) -> None:
        clear = super().clear_blocks
        self._model.on_all(Call.CLEAR_BLOCKS, block_ids, lambda: clear(kv, block_ids))

    def copy_blocks(self, kv: Array, sources: Ints, targets: Ints) -> None:
        copy = super().copy_blocks
        words = np.concatenate((sources, targets))
        self._model.on_all(Call.COPY_BLOCKS, words, lambda: copy(kv, sources, targets))
