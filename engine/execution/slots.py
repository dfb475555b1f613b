"""Per-request state on the executor's side: one row for each running request, changed only by what is new.

A step names requests; what the kernels need of each (its block table, its sampling columns) stays here between
steps, so that a step carries over only the differences.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from engine.config import BLOCK_TOKENS
from engine.request import Request, SamplingParams
from engine.scheduling.plan import ScheduledRow
from kernels.arrays import Floats, Ints

_LOWEST_TEMPERATURE = 1e-6
"""Noise is nothing beside a difference of logits here already, and the inverse of the lowest number is no number."""


@dataclass(slots=True)
class TokenCounts:
    """How often each token came so far: what the penalties look at. `taken` tokens are counted."""

    prompt: set[int] = field(default_factory=set)
    output: Counter[int] = field(default_factory=Counter)
    taken: int = 0

    def catch_up(self, request: Request) -> None:
        if self.taken == 0:
            self.prompt.update(request.tokens[: request.prompt_tokens])
            self.taken = request.prompt_tokens
        self.output.update(request.tokens[self.taken :])
        self.taken = len(request.tokens)


@dataclass(slots=True)
class Slot:
    """Who holds a slot. `admissions` tells a request from itself before it came back, when it had other blocks."""

    request: Request | None = None
    admissions: int = 0
    blocks: list[int] = field(default_factory=list)
    counts: TokenCounts | None = None

    def belongs_to(self, request: Request) -> bool:
        return self.request is request and self.admissions == request.admissions


class SlotTable:
    """The slots of one model.

    tables: int64 [slots, blocks of the longest sequence], block tables.
    inverse_temperature, noise_scale, top_p, min_p: float32 [slots]; top_k: int64 [slots].
    """

    def __init__(self, num_slots: int, max_model_len: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slots = [Slot() for _ in range(num_slots)]
        self._counting: set[int] = set()
        """Slots whose tokens are counted."""
        max_blocks = (max_model_len + BLOCK_TOKENS - 1) // BLOCK_TOKENS
        self.tables: Ints = np.zeros((num_slots, max_blocks), dtype=np.int64)
        self.inverse_temperature: Floats = np.ones(num_slots, dtype=np.float32)
        self.noise_scale: Floats = np.zeros(num_slots, dtype=np.float32)
        self.top_k: Ints = np.full(num_slots, vocab_size, dtype=np.int64)
        self.top_p: Floats = np.ones(num_slots, dtype=np.float32)
        self.min_p: Floats = np.zeros(num_slots, dtype=np.float32)

    def update(self, row: ScheduledRow) -> None:
        """Bring the row's slot up to date with its request."""
        request = row.request
        assert request.slot is not None
        slot = self._slots[request.slot]
        if not slot.belongs_to(request):
            slot.request, slot.admissions, slot.blocks = request, request.admissions, []
            slot.counts = TokenCounts() if uses_counts(request.params) else None
            (self._counting.add if slot.counts is not None else self._counting.discard)(request.slot)
            self._load_columns(request.slot, request.params)
        self._load_blocks(request.slot, slot, row)
        if slot.counts is not None and row.samples:
            slot.counts.catch_up(request)

    def count_tokens(self, requests: Iterable[Request]) -> None:
        """Bring the counts of requests up to date, whose slots are but for their latest tokens."""
        if self._counting:
            for request in requests:
                if (counts := self.counts(request)) is not None:
                    counts.catch_up(request)

    def tables_of(self, slots: Ints, contexts: Ints) -> Ints:
        """Block tables int64 [R, B] of slots int64 [R], as far as the longest of these contexts, int64 [R], goes."""
        tables: Ints = self.tables[slots, : -(-int(contexts.max()) // BLOCK_TOKENS)]
        return tables

    def counts(self, request: Request) -> TokenCounts | None:
        """None where the request has no penalty."""
        assert request.slot is not None
        return self._slots[request.slot].counts

    def _load_columns(self, index: int, params: SamplingParams) -> None:
        self.inverse_temperature[index] = inverse_temperature(params)
        self.noise_scale[index] = 0.0 if params.temperature == 0 else 1.0
        self.top_k[index] = params.top_k or self._vocab_size
        self.top_p[index] = params.top_p
        self.min_p[index] = params.min_p

    def _load_blocks(self, index: int, slot: Slot, row: ScheduledRow) -> None:
        """Copy what changed: blocks that hold computed tokens stay, those after them may come, go and be replaced."""
        table = row.request.block_table
        first = min(row.start // BLOCK_TOKENS, len(slot.blocks))
        tail = table[first:]
        if slot.blocks[first:] != tail:
            self.tables[index, first : len(table)] = tail
            slot.blocks[first:] = tail


def inverse_temperature(params: SamplingParams) -> float:
    """What logits are multiplied with before noise is added; 1 for a greedy request, which has no noise."""
    return 1.0 / max(params.temperature, _LOWEST_TEMPERATURE) if params.temperature else 1.0


def uses_counts(params: SamplingParams) -> bool:
    """Whether a penalty looks at how often tokens came."""
    return bool(params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0)


def slot_of(request: Request) -> int:
    assert request.slot is not None, f"{request.id} has no slot"
    return request.slot
