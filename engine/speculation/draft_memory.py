"""Tracks which KV a draft model has computed, by request and block. Bookkeeping only, no tensors.

A draft model's KV uses the target's block ids in memory of its own. It is not notified when blocks are shared, copied,
freed or reused. Instead it remembers what it wrote to each block, by the hash of the content.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.config import BLOCK_TOKENS, MOST_DRAFTS
from engine.memory.kv_cache import BlockCopy
from engine.request import Request

ORDINARY_TOKENS = 2
"""Maximum tokens to compute for a request that had drafts in the last step: the last draft, if all were accepted, and
the token that the target sampled after it."""


class DraftRow(NamedTuple):
    """Compute `tokens` tokens of a request from position `start` on, then sample `depth` drafts in sequence.

    `depth` 0: the row only catches up. `want`: the index of its want. `block_table`: the request's blocks, then the
    slot's spare block.
    """

    want: int
    request: Request
    start: int
    tokens: int
    depth: int
    block_table: list[int]


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """The work of one call, in this order: the copies, clear the blocks in `cleared`, compute the rows. Rows are in
    order of context, the shortest first."""

    rows: list[DraftRow]
    copies: list[BlockCopy]
    cleared: list[int]


@dataclass(slots=True)
class _Slot:
    """The KV of the request in a slot. `admissions` tells it from the same request before a preemption.

        |  computed: of its tokens  |  drafted: of drafts, valid if they were accepted  |

    `spilled`: the block number from which on this KV is in the slot's spare block. `recorded`: the number of leading
    blocks whose hashes are recorded.
    """

    request: Request | None = None
    admissions: int = 0
    computed: int = 0
    drafted: Sequence[int] = ()
    spilled: int | None = None
    recorded: int = 0

    def holds(self, request: Request) -> bool:
        return self.request is request and self.admissions == request.admissions

    def num_accepted(self, request: Request) -> int:
        """The length of the accepted prefix of the drafts: those that are the request's tokens now."""
        count = 0
        for drafted, token in zip(self.drafted, request.tokens[self.computed :], strict=False):
            if drafted != token:
                break
            count += 1
        return count


@dataclass(slots=True)
class _Step:
    """A plan that is being made. `written`: blocks that its rows fill."""

    catch_up_tokens: int
    plan: DraftPlan = field(default_factory=lambda: DraftPlan([], [], []))
    written: set[int] = field(default_factory=set)


class DraftMemory:
    """The draft model's KV: `num_blocks` blocks of the target's ids, then a spare one for each slot.

    A block's content is identified by the hash that its writer has for it, so a request with the same hash may read the
    block. This holds independently of the block on the target's side: the draft model's copy changes only when the
    draft model writes it, and its hash is dropped first.

    Drafts are written after a request's tokens, where the target may not have allocated a block yet. Such drafts go to
    the slot's spare block, which is copied into the real block when that exists. One spare block is enough, as a
    request never has more drafts than a block has tokens.

    A block that several requests hold is full of final tokens, and is written as a whole in one pass or not at all. So
    if two requests write it, both write the same, and no request reads a part of it.
    """

    def __init__(self, num_blocks: int, num_slots: int, max_positions: int) -> None:
        self._num_blocks = num_blocks
        self._max_positions = max_positions
        self._content: list[bytes | None] = [None] * num_blocks
        self._slots = [_Slot() for _ in range(num_slots)]

    def lag(self, request: Request) -> int:
        """Tokens of a running request, without its last, that have to be computed before drafting."""
        return len(request.tokens) - 1 - self._computed_with_cached(request, self._computed(request))

    def plan(self, wants: Sequence[tuple[Request, int]], catch_up_tokens: int) -> DraftPlan:
        """Plan the computation for some requests, each with its maximum number of drafts.

        Requests with more than `ORDINARY_TOKENS` to compute share `catch_up_tokens`, in order; one that would exceed
        them catches up by whole blocks. A request whose next block is being written for another request waits. Nothing
        is computed past the draft model's `max_positions`.

        Follow with `commit` or `clear`, as the plan already records the writes.
        """
        step = _Step(catch_up_tokens)
        for number, (request, depth) in enumerate(wants):
            depth = min(depth, MOST_DRAFTS, self._max_positions + 1 - len(request.tokens))
            if depth > 0:
                self._plan_row(step, number, request, depth)
        step.plan.rows.sort(key=lambda row: row.start + row.tokens)
        return step.plan

    def commit(self, plan: DraftPlan, drafts: Sequence[Sequence[int]]) -> None:
        """Record that the plan's rows are computed and these drafts sampled. A row's last draft is not computed."""
        for row, drawn in zip(plan.rows, drafts, strict=True):
            slot = self._slot(row.request)
            slot.computed = row.start + row.tokens
            slot.drafted = drawn[:-1]
            blocks = len(row.block_table) - 1
            slot.spilled = blocks if slot.computed + len(slot.drafted) > blocks * BLOCK_TOKENS else None
            self._record(slot, row.request)

    def clear(self) -> None:
        """Forget everything: the content of the memory is unknown."""
        self._content = [None] * self._num_blocks
        self._slots = [_Slot() for _ in self._slots]

    def _plan_row(self, step: _Step, number: int, request: Request, depth: int) -> None:
        start = self._sync_slot(request, step.plan.copies)
        tokens = len(request.tokens) - start
        table = [*request.block_table, self._num_blocks + _slot_id(request)]
        if tokens > ORDINARY_TOKENS:
            if table[start // BLOCK_TOKENS] in step.written:
                return
            if tokens > step.catch_up_tokens:
                tokens = (start + step.catch_up_tokens) // BLOCK_TOKENS * BLOCK_TOKENS - start
                depth = 0
                if tokens <= 0:
                    return
            step.catch_up_tokens -= tokens
        row = DraftRow(number, request, start, tokens, depth, table)
        step.plan.rows.append(row)
        self._claim_blocks(step, row)

    def _claim_blocks(self, step: _Step, row: DraftRow) -> None:
        """Drop the hashes of the blocks that the row writes. Blocks that it does not fill at once are cleared first:
        old content past the row's context, such as a NaN, would survive the attention mask."""
        end = row.start + row.tokens
        last = end + max(0, row.depth - 1)
        for index in range(row.start // BLOCK_TOKENS, -(-last // BLOCK_TOKENS)):
            block = row.block_table[index]
            if block < self._num_blocks:
                self._content[block] = None
            if (index + 1) * BLOCK_TOKENS <= end:
                step.written.add(block)
            elif index * BLOCK_TOKENS >= row.start:
                step.plan.cleared.append(block)

    def _sync_slot(self, request: Request, copies: list[BlockCopy]) -> int:
        """Update the request's slot with its accepted drafts. Returns the number of its computed tokens."""
        slot = self._slot(request)
        known, spilled = self._computed(request), slot.spilled
        if not slot.holds(request):
            slot.request, slot.admissions, slot.recorded = request, request.admissions, 0
        elif spilled is not None and known > spilled * BLOCK_TOKENS:
            target = request.block_table[spilled]
            copies.append(BlockCopy(self._num_blocks + _slot_id(request), target))
            self._content[target] = None
        slot.computed, slot.drafted, slot.spilled = self._computed_with_cached(request, known), (), None
        return slot.computed

    def _computed(self, request: Request) -> int:
        """Tokens of the request that were computed for itself, without its last: the next draft is sampled from that
        one's logits, so it is recomputed even where an unverified draft equals it."""
        slot = self._slot(request)
        return min(slot.computed + slot.num_accepted(request), len(request.tokens) - 1) if slot.holds(request) else 0

    def _computed_with_cached(self, request: Request, known: int) -> int:
        """The same plus the following full blocks whose content, written for any request, equals the request's."""
        hashes, content = request.block_hashes, self._content
        for index in range(known // BLOCK_TOKENS, min(len(hashes), (len(request.tokens) - 1) // BLOCK_TOKENS)):
            if content[request.block_table[index]] != hashes[index]:
                break
            known = (index + 1) * BLOCK_TOKENS
        return known

    def _record(self, slot: _Slot, request: Request) -> None:
        """Record the hashes of full computed blocks, as far as the request knows them."""
        full = min(slot.computed // BLOCK_TOKENS, len(request.block_hashes))
        for index in range(slot.recorded, full):
            self._content[request.block_table[index]] = request.block_hashes[index]
        slot.recorded = max(slot.recorded, full)

    def _slot(self, request: Request) -> _Slot:
        return self._slots[_slot_id(request)]


def _slot_id(request: Request) -> int:
    assert request.slot is not None, f"{request.id} does not run"
    return request.slot
