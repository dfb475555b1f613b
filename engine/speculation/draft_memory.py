"""What a draft model has computed, of which requests and in which blocks: arithmetic alone, no tensors.

A draft model's KV lies in blocks of the same ids as the target's, in memory of its own. Nobody tells it when blocks are
shared, copied, given back or taken for something else. It need not be told: it remembers what it wrote, by content.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.config import BLOCK_TOKENS, MOST_DRAFTS
from engine.memory.kv_cache import BlockCopy
from engine.request import Request

ORDINARY_TOKENS = 2
"""A request that was drafted for in the last step has so many to compute at most: the last draft, where all came true,
and the token that was drawn behind it."""


class DraftRow(NamedTuple):
    """Compute `tokens` tokens of a request from position `start` on, then draw `depth` drafts one after another.

    With `depth` 0 the row only catches up. `want` is the row's place among the wants. `block_table` are the request's
    blocks and behind them the slot's spare one.
    """

    want: int
    request: Request
    start: int
    tokens: int
    depth: int
    block_table: list[int]


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """What to do, in this order: the copies, clear the blocks in `cleared`, compute the rows. Those with the least
    context come first."""

    rows: list[DraftRow]
    copies: list[BlockCopy]
    cleared: list[int]


@dataclass(slots=True)
class _Slot:
    """What there is of the request in a slot. `preemptions` tells it from itself before a preemption.

        |  computed: of its tokens  |  drafted: of drafts, which count if they came true  |

    From block number `spilled` on that lies in the slot's spare block. The first `recorded` blocks have their names.
    """

    request: Request | None = None
    admissions: int = 0
    computed: int = 0
    drafted: Sequence[int] = ()
    spilled: int | None = None
    recorded: int = 0

    def holds(self, request: Request) -> bool:
        return self.request is request and self.admissions == request.admissions

    def came_true(self, request: Request) -> int:
        """How many of the drafts, from the first on, are the request's tokens now."""
        count = 0
        for drafted, token in zip(self.drafted, request.tokens[self.computed :], strict=False):
            if drafted != token:
                break
            count += 1
        return count


@dataclass(slots=True)
class _Step:
    """A plan in the making. `written` are blocks that a row of it fills."""

    catch_up_tokens: int
    plan: DraftPlan = field(default_factory=lambda: DraftPlan([], [], []))
    written: set[int] = field(default_factory=set)


class DraftMemory:
    """The draft model's KV: `num_blocks` blocks of the target's ids, then a spare one for each slot.

    A block's content is named by the hash that the request which wrote it has for it, so a request that finds the same
    hash in its own list may read the block. That stays true whatever becomes of the block on the target's side: the
    draft's copy changes only when the draft writes it, and then its name goes first.

    Drafts are written behind a request's tokens, where the target's planner may not have allocated yet, and need not:
    those go to the slot's spare block, which is copied into the real one when that is there. One is enough: there are
    no more drafts than a block has tokens.

    A block that several requests hold is full of final tokens, and is written whole in one pass or not at all. So
    where two write it, both write the same, and no one sees a part of it.
    """

    def __init__(self, num_blocks: int, num_slots: int, max_positions: int) -> None:
        self._num_blocks = num_blocks
        self._max_positions = max_positions
        self._content: list[bytes | None] = [None] * num_blocks
        self._slots = [_Slot() for _ in range(num_slots)]

    def lag(self, request: Request) -> int:
        """How many tokens of a running request, but for its last, have to be computed before drafting begins."""
        return len(request.tokens) - 1 - self._reach(request, self._known(request))

    def plan(self, wants: Sequence[tuple[Request, int]], catch_up_tokens: int) -> DraftPlan:
        """What to compute for requests, each with the most drafts that are wanted of it.

        Requests that are further behind than drafting alone leaves them share `catch_up_tokens`, those in front first;
        one for which they do not suffice catches up by whole blocks. One whose next block is being written for another
        waits for that. Nothing is computed past the draft model's positions.

        `commit` it, or `clear`: the plan counts on what is done to memory.
        """
        step = _Step(catch_up_tokens)
        for number, (request, depth) in enumerate(wants):
            depth = min(depth, MOST_DRAFTS, self._max_positions + 1 - len(request.tokens))
            if depth > 0:
                self._plan_row(step, number, request, depth)
        step.plan.rows.sort(key=lambda row: row.start + row.tokens)
        return step.plan

    def commit(self, plan: DraftPlan, drafts: Sequence[Sequence[int]]) -> None:
        """The plan's rows were computed, and these drafts drawn for each; the last of a row was not computed."""
        for row, drawn in zip(plan.rows, drafts, strict=True):
            slot = self._slot(row.request)
            slot.computed = row.start + row.tokens
            slot.drafted = drawn[:-1]
            blocks = len(row.block_table) - 1
            slot.spilled = blocks if slot.computed + len(slot.drafted) > blocks * BLOCK_TOKENS else None
            self._record(slot, row.request)

    def clear(self) -> None:
        """Nothing is known of the memory any more."""
        self._content = [None] * self._num_blocks
        self._slots = [_Slot() for _ in self._slots]

    def _plan_row(self, step: _Step, number: int, request: Request, depth: int) -> None:
        start = self._meet(request, step.plan.copies)
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
        self._enter(step, row)

    def _enter(self, step: _Step, row: DraftRow) -> None:
        """Blocks that the row writes lose their names. Those that it does not fill at once are cleared first: what was
        there past the row's context (a NaN, say) would survive the attention's mask."""
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

    def _meet(self, request: Request, copies: list[BlockCopy]) -> int:
        """Bring the request's slot up to date with what became of it; how many of its tokens are computed."""
        slot = self._slot(request)
        known, spilled = self._known(request), slot.spilled
        if not slot.holds(request):
            slot.request, slot.admissions, slot.recorded = request, request.admissions, 0
        elif spilled is not None and known > spilled * BLOCK_TOKENS:
            target = request.block_table[spilled]
            copies.append(BlockCopy(self._num_blocks + _slot_id(request), target))
            self._content[target] = None
        slot.computed, slot.drafted, slot.spilled = self._reach(request, known), (), None
        return slot.computed

    def _known(self, request: Request) -> int:
        """How many of the request's tokens were computed for itself. Never the last, which the next one is drawn
        from: where it is there already, as a draft that was not verified came true, it is computed again."""
        slot = self._slot(request)
        return min(slot.computed + slot.came_true(request), len(request.tokens) - 1) if slot.holds(request) else 0

    def _reach(self, request: Request, known: int) -> int:
        """The same with the whole blocks behind them that hold, by whomever written, what the request's would."""
        hashes, content = request.block_hashes, self._content
        for index in range(known // BLOCK_TOKENS, min(len(hashes), (len(request.tokens) - 1) // BLOCK_TOKENS)):
            if content[request.block_table[index]] != hashes[index]:
                break
            known = (index + 1) * BLOCK_TOKENS
        return known

    def _record(self, slot: _Slot, request: Request) -> None:
        """Name the blocks that are computed in full, as far as the request knows its hashes."""
        full = min(slot.computed // BLOCK_TOKENS, len(request.block_hashes))
        for index in range(slot.recorded, full):
            self._content[request.block_table[index]] = request.block_hashes[index]
        slot.recorded = max(slot.recorded, full)

    def _slot(self, request: Request) -> _Slot:
        return self._slots[_slot_id(request)]


def _slot_id(request: Request) -> int:
    assert request.slot is not None, f"{request.id} does not run"
    return request.slot
