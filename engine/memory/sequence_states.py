"""The recurrent states of requests: which slot each row reads and writes, and which states are saved for reuse."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from engine.config import BLOCK_TOKENS
from engine.memory.prefix_hits import PrefixHits
from engine.memory.request_hashes import extend_hashes
from engine.memory.state_pool import StatePool, StateUse
from engine.request import Request

STATE_INTERVAL_BLOCKS = 32
"""Blocks between the states that are saved of a sequence: 512 tokens. The state of a layer of 32 heads is as large as
the KV of 512 tokens of a layer with 8 KV heads, so states and KV of a long prompt take about as much memory."""


class StateCopy(NamedTuple):
    """Copy state slot `source` over slot `target` before the step's rows run. Copies are made in order."""

    source: int
    target: int


class StateSave(NamedTuple):
    """Copy the state of a request after its first `position` tokens into `slot`, while its row runs.

    Of a row with drafts, only where the accepted ones reach the position.
    """

    request: Request
    position: int
    slot: int


@dataclass(frozen=True, slots=True)
class StepStates:
    """Moves of states in a step. In addition, a row advances the state in its request's slot `state` from its
    `start`, which is zero at position 0, by its tokens; of drafts, by the accepted ones."""

    copies: tuple[StateCopy, ...] = ()
    saves: tuple[StateSave, ...] = ()


class Row(Protocol):
    """The part of a `ScheduledRow` that matters here."""

    @property
    def request(self) -> Request: ...

    @property
    def start(self) -> int: ...

    @property
    def tokens(self) -> int: ...


class SequenceStates:
    """Keeps the `state`, `state_tokens` and `state_saves` of requests; nothing else writes them.

    A recurrent state stands for all tokens up to a position and cannot be cut, so a prefix is reused where both its
    blocks are cached and a state was saved at its end. States are saved at each `interval_blocks`-th block border that
    a row passes, and at the last border before the end of the prompt, so that the same prompt, and other choices of its
    call, compute less than a block again.

    A running request has one slot. A preempted one has none: it resumes from its last saved state. Saved states are
    published when the step that passed them completes, and evicted with the blocks of the same hash.

    Slots follow the executor's order: a slot that is freed may be taken at once, as the step that uses it next runs
    after all steps that were launched before.
    """

    def __init__(self, pool: StatePool, interval_blocks: int = STATE_INTERVAL_BLOCKS) -> None:
        assert interval_blocks > 0, f"an interval of {interval_blocks} blocks"
        self._pool = pool
        self._interval = interval_blocks * BLOCK_TOKENS
        self._copies: list[StateCopy] = []
        self.hits_total = 0
        """Requests that began, or resumed, with a saved state."""

    @property
    def pool(self) -> StatePool:
        return self._pool

    def reserve(self, tenant_fraction: float) -> None:
        """Set the fraction of the slots beyond which a tenant evicts its own snapshots first."""
        self._pool.tenant_slots = max(1, int(tenant_fraction * self._pool.num_slots))

    def reusable_blocks(self, request: Request, hits: PrefixHits, limit: int) -> int:
        """The most leading blocks, up to `limit`, at whose end a state is saved. O(1) while nothing changes."""
        known = self._pool.changes_total, limit
        if hits.states_seen != known:
            extend_hashes(request, limit)
            find, hashes = self._pool.find, request.block_hashes
            ends = (count for count in range(limit, 0, -1) if find(hashes[count - 1]) is not None)
            hits.states_seen, hits.state_blocks = known, next(ends, 0)
        return hits.state_blocks

    def begin(self, request: Request, tokens: int) -> None:
        """Give a request a slot with the state after its first `tokens` tokens: the zero state, or a saved one."""
        assert request.state is None, f"{request.id} has a state already"
        source = None
        if tokens:
            block_hash = request.block_hashes[tokens // BLOCK_TOKENS - 1]
            source = self._pool.find(block_hash)
            assert source is not None, f"the state of {request.id} at {tokens} is gone"
            self._pool.touch(block_hash)
            self.hits_total += 1
        request.state = self._pool.take_running()
        request.state_tokens = tokens
        if source is not None and source != request.state:
            self._copies.append(StateCopy(source, request.state))

    def end(self, request: Request) -> None:
        """Free all slots of a request, if it has any."""
        for _, slot in request.state_saves:
            self._pool.give_back(slot, StateUse.PENDING)
        request.state_saves.clear()
        if request.state is not None:
            self._pool.give_back(request.state, StateUse.RUNNING)
            request.state = None

    def plan(self, rows: Iterable[Row], *, save: bool) -> StepStates:
        """The copies and, with `save`, the saves of a step with these rows."""
        copies, self._copies = tuple(self._copies), []
        saves = list[StateSave]()
        for row in rows if save else ():
            request, start, end = row.request, row.start, row.start + row.tokens
            for position in self._borders(request, start, end):  # the longest prefix first, where slots are short
                if not self._is_saved(request, position):
                    slot = self._pool.take_pending(request.tenant)
                    if slot is not None:
                        request.state_saves.append((position, slot))
                        saves.append(StateSave(request, position, slot))
        return StepStates(copies, tuple(saves))

    def publish(self, request: Request) -> None:
        """Publish the saved states up to `computed`. The blocks up to there have just been published."""
        for position, slot in sorted(_split(request, reached=True)):  # the longest prefix is evicted last
            self._pool.publish(slot, request.block_hashes[position // BLOCK_TOKENS - 1], request.tenant)

    def trim(self, request: Request) -> None:
        """Free the slots for states that rejected drafts would have reached."""
        for _, slot in _split(request, reached=False):
            self._pool.give_back(slot, StateUse.PENDING)

    def check(self, requests: Iterable[Request]) -> None:
        """Assert the invariants that hold between any two steps. `requests`: all unfinished ones."""
        self._pool.check()
        running, pending = list[int](), list[int]()
        for request in requests:
            holds_blocks = bool(request.block_table) or request.is_allocating
            assert holds_blocks == (request.state is not None), (
                f"{request.id} has blocks without a state, or a state alone"
            )
            if request.state is not None:
                running.append(request.state)
            for position, slot in request.state_saves:
                assert request.state is not None, f"{request.id} saves a state and has none"
                assert position % BLOCK_TOKENS == 0, f"{request.id} saves a state within a block"
                assert request.computed < position <= request.scheduled, (
                    f"{request.id} saves a state of no row in flight"
                )
                pending.append(slot)
        for slots, use in ((running, StateUse.RUNNING), (pending, StateUse.PENDING)):
            assert len(set(slots)) == len(slots), f"a state slot is {use.name} twice"
            assert len(slots) == self._pool.count(use), f"a state slot {use.name} is lost"
            assert all(self._pool.use_of(slot) is use for slot in slots), f"a state slot is not {use.name}"

    def _borders(self, request: Request, start: int, end: int) -> Iterator[int]:
        """The positions in (start, end] at which states are saved, the last one first."""
        prompt_end = (request.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        if start < prompt_end <= end and prompt_end % self._interval:
            yield prompt_end
        yield from range(end - end % self._interval, start, -self._interval)

    def _is_saved(self, request: Request, position: int) -> bool:
        """Whether a state of the same prefix is saved, as far as it is known: drafts and tokens in flight have no
        hash."""
        if position > len(request.tokens):
            return False
        extend_hashes(request, position // BLOCK_TOKENS)
        return self._pool.find(request.block_hashes[position // BLOCK_TOKENS - 1]) is not None


def _split(request: Request, *, reached: bool) -> list[tuple[int, int]]:
    """Remove and return the request's pending saves that `computed` has, or has not, reached."""
    taken = [save for save in request.state_saves if (save[0] <= request.computed) is reached]
    request.state_saves[:] = [save for save in request.state_saves if save not in taken]
    return taken
