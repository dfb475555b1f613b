"""Per-request state of the executor: one row for each running request, updated incrementally.

A step names requests; what the kernels need of each (block table, sampling columns) is kept here between steps, so that
a step carries over only the differences.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.config import BLOCK_TOKENS
from engine.execution.seen_tokens import SeenTokens
from engine.request import Request, SamplingParams
from engine.scheduling.plan import ScheduledRow
from kernels.arrays import Floats, Ints

_LOWEST_TEMPERATURE = 1e-6
"""Lower bound of the temperature: at this value noise is negligible compared with any difference of logits, and the
inverse is still finite."""


@dataclass(slots=True)
class Slot:
    """The holder of a slot. `admissions` distinguishes a request from the same request before it was preempted, when it
    had other blocks."""

    request: Request | None = None
    admissions: int = 0
    blocks: list[int] = field(default_factory=list)
    biases: tuple[Ints, Floats] | None = None

    def belongs_to(self, request: Request) -> bool:
        """Whether the slot's state is that of the request's current admission."""
        return self.request is request and self.admissions == request.admissions


class SlotTable:
    """The slots of one model.

    tables: int64 [slots, blocks of the longest sequence], block tables. window_tables: the same of each group of KV
        after the first; entries of released blocks are arbitrary blocks.
    inverse_temperature, noise_scale, top_p, min_p: float32 [slots]; top_k: int64 [slots].
    repetition_penalty, presence_penalty, frequency_penalty: float32 [slots]. seen: token counts for penalties.
    """

    def __init__(self, num_slots: int, max_model_len: int, vocab_size: int, groups: int = 1) -> None:
        """`groups`: of the model's KV."""
        self._vocab_size = vocab_size
        self._slots = [Slot() for _ in range(num_slots)]
        self.seen = SeenTokens(num_slots, max_model_len, vocab_size)
        max_blocks = (max_model_len + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        self.tables: Ints = np.zeros((num_slots, max_blocks), dtype=np.int64)
        self.window_tables: list[Ints] = [np.zeros_like(self.tables) for _ in range(groups - 1)]
        self.inverse_temperature: Floats = np.ones(num_slots, dtype=np.float32)
        self.noise_scale: Floats = np.zeros(num_slots, dtype=np.float32)
        self.top_k: Ints = np.full(num_slots, vocab_size, dtype=np.int64)
        self.top_p: Floats = np.ones(num_slots, dtype=np.float32)
        self.min_p: Floats = np.zeros(num_slots, dtype=np.float32)
        self.repetition_penalty: Floats = np.ones(num_slots, dtype=np.float32)
        self.presence_penalty: Floats = np.zeros(num_slots, dtype=np.float32)
        self.frequency_penalty: Floats = np.zeros(num_slots, dtype=np.float32)

    def update(self, row: ScheduledRow) -> None:
        """Bring the row's slot up to date with its request."""
        request = row.request
        assert request.slot is not None
        slot = self._slots[request.slot]
        if not slot.belongs_to(request):
            slot.request, slot.admissions, slot.blocks = request, request.admissions, []
            slot.biases = _arrays_of(request.params.logit_bias)
            self.seen.end(request.slot)
            self._load_columns(request.slot, request.params)
        self._load_blocks(request.slot, slot, row)
        if row.samples and uses_counts(request.params):
            self._count(request.slot, request)

    def count_tokens(self, requests: Iterable[Request]) -> None:
        """Update the token counts of requests whose slots are otherwise up to date."""
        if self.seen.any:
            for request in requests:
                if uses_counts(request.params):
                    self._count(slot_of(request), request)

    def tables_of(self, slots: Ints, contexts: Ints, spare: int = 0) -> Ints:
        """Block tables in the first group of KV: see `_tables_of`."""
        return _tables_of(self.tables, slots, contexts, spare)

    def window_tables_of(self, slots: Ints, contexts: Ints) -> tuple[Ints, ...]:
        """The same in each further group."""
        return tuple(_tables_of(tables, slots, contexts) for tables in self.window_tables)

    def biases(self, slot: int) -> tuple[Ints, Floats]:
        """Token ids int64 [E] and their logit biases float32 [E]. The slot's request must have some."""
        biases = self._slots[slot].biases
        assert biases is not None, f"the request of slot {slot} has no bias"
        return biases

    def _count(self, slot: int, request: Request) -> None:
        if not self.seen.counts_in(slot):
            self.seen.begin(slot, request)
        self.seen.catch_up(slot, request)

    def _load_columns(self, index: int, params: SamplingParams) -> None:
        self.inverse_temperature[index] = inverse_temperature(params)
        self.noise_scale[index] = 0.0 if params.temperature == 0 else 1.0
        self.top_k[index] = params.top_k or self._vocab_size
        self.top_p[index] = params.top_p
        self.min_p[index] = params.min_p
        self.repetition_penalty[index] = params.repetition_penalty
        self.presence_penalty[index] = params.presence_penalty
        self.frequency_penalty[index] = params.frequency_penalty

    def _load_blocks(self, index: int, slot: Slot, row: ScheduledRow) -> None:
        """Copy what changed: blocks of computed tokens stay, those after them may be added, removed and replaced."""
        table = row.request.block_table
        first = min(row.start // BLOCK_TOKENS, len(slot.blocks))
        tail = table[first:]
        if slot.blocks[first:] != tail:
            self.tables[index, first : len(table)] = tail
            slot.blocks[first:] = tail
        for known, further in zip(self.window_tables, row.request.window_tables, strict=True):
            known[index, first : len(table)] = np.maximum(further[first:], 0)


def _tables_of(tables: Ints, slots: Ints, contexts: Ints, spare: int = 0) -> Ints:
    """Block tables int64 [R, B] of slots int64 [R], valid up to each context int64 [R] and arbitrary past it. B is
    the blocks of the longest context plus up to `spare` columns.

    Copies O(blocks of all contexts) rather than O(R * B): one long table does not widen the copies of short ones.
    """
    sizes = -(-contexts // BLOCK_TOKENS)
    longest = int(sizes.max())
    width = min(longest + spare, tables.shape[1])
    together = min(2 * -(-int(sizes.sum()) // len(sizes)), width)
    rows: Ints
    if together == width:
        rows = tables[slots, :width]
        return rows
    rows = np.empty((len(slots), width), dtype=np.int64)
    rows[:, :together] = tables[slots, :together]
    for row in (sizes > together).nonzero()[0].tolist():
        rows[row, together : sizes[row]] = tables[slots[row], together : sizes[row]]
    return rows


def inverse_temperature(params: SamplingParams) -> float:
    """Factor of the logits before noise is added; 1 for a greedy request, which has no noise."""
    return 1.0 / max(params.temperature, _LOWEST_TEMPERATURE) if params.temperature else 1.0


def _arrays_of(biases: Mapping[int, float]) -> tuple[Ints, Floats] | None:
    if not biases:
        return None
    return np.array(list(biases), dtype=np.int64), np.array(list(biases.values()), dtype=np.float32)


def uses_counts(params: SamplingParams) -> bool:
    """Whether a penalty needs token counts."""
    return bool(params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0)


def slot_of(request: Request) -> int:
    """The request's slot; it must have one."""
    assert request.slot is not None, f"{request.id} has no slot"
    return request.slot
