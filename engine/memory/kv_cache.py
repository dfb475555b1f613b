"""The KV cache of requests: prefix hits, block tables, and what is published for reuse (paged attention: Kwon et al.
2023, Efficient Memory Management for Large Language Model Serving with PagedAttention)."""

from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from engine.config import BLOCK_TOKENS
from engine.memory.block_pool import BlockPool, Survey
from engine.memory.preemption_gain import PreemptionGain
from engine.memory.prefix_hits import PrefixHits
from engine.memory.prefix_journal import PrefixJournal
from engine.memory.request_hashes import extend_hashes
from engine.memory.sequence_states import SequenceStates
from engine.memory.shared_prompt import SharedPrompt
from engine.memory.step_blocks import BLOCKS_A_STEP, StepBlocks
from engine.memory.table_checks import blocks_by_holder, check_fork, check_holders, check_table
from engine.memory.tiers.fetching import Fetch
from engine.memory.tiers.tier import KVTier
from engine.memory.window_groups import WindowGroups, held_blocks
from engine.request import Request, ServiceClass

FORKED_FOR_ONE = 6
"""Shared blocks of a fork that cost as much time as allocating one: only their ids and hashes are copied."""


class BlockDemand(NamedTuple):
    """The blocks that admitting a request takes: cached ones to share (`hits`), and `num_new_blocks` of its own.

    It stays valid while blocks are only released: allocating or publishing blocks may change what is cached.
    """

    hits: PrefixHits
    num_new_blocks: int


class BlockCopy(NamedTuple):
    """Copy the KV of block `source` over block `target` before the step's rows run (copy on write)."""

    source: int
    target: int


def blocks_for(tokens: int) -> int:
    """The number of blocks that hold the KV of `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class KVCacheManager:
    """Keeps the `block_table`, `block_hashes`, `computed` and `cached_tokens` of requests; nothing else writes them.

    The block table of a running request, of 16-token blocks:

        |  full, final: published, maybe shared  |  computed in part  |  allocated, not computed yet  |
        |<------------- computed // 16 --------->|<- written from here on: this request's alone ----->|

    So a shared or published block is never written, and only `fork`, which shares a block that is still being filled,
    copies one. Tables and tokens are append-only while a request runs; a request that does not run holds no blocks.

    The work on blocks between two steps is bounded, so that a long request does not delay the others: see `StepBlocks`.

    Blocks are published when the step that filled them completes, never while it is in flight. Blocks that are released
    while a step in flight writes to them are not published and may be reused at once: their next owner writes in a
    later step.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        prefix_cache: bool = True,
        blocks_a_step: int = BLOCKS_A_STEP,
        states: SequenceStates | None = None,
        windows: Sequence[int | None] = (),
        tier: KVTier | None = None,
    ) -> None:
        """`states`: of a model with recurrent layers. `windows`: of a model whose KV is in groups, the windows of those
        after the first. `tier`: the second pool under the same hashes."""
        assert states is None or not windows, "recurrent states and KV in groups"
        assert tier is None or (prefix_cache and states is None and not windows), "a second pool for such KV"
        self._pool = pool
        self.tier = tier
        self.states = states
        self._windows = WindowGroups(pool, windows) if windows else None
        self.groups = 1 + len(windows)
        """Blocks that hold the KV of 16 tokens, before windows pass them."""
        if states is not None:
            pool.on_drop = states.pool.evict
        self._prefix_cache = prefix_cache
        self._step = StepBlocks(pool, blocks_a_step)
        self._holders = count(1)

    def reserve(self, classes: Sequence[ServiceClass], tenant_cache_fraction: float) -> None:
        """Set the classes' reserves, in the order of their ranks, and the fraction of the pool that a tenant may have
        before it evicts its own cached blocks."""
        num_blocks = self._pool.num_blocks
        reserved = [int(service_class.reserved_fraction * num_blocks) for service_class in classes]
        self._pool.reserve(reserved, max(1, int(tenant_cache_fraction * num_blocks)))
        if self.states is not None:
            self.states.reserve(tenant_cache_fraction)

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    def record_prefixes(self, journal: PrefixJournal) -> list[bytes]:
        """Record changes of the published hashes from now on, in place of another journal. Returns those as of now."""
        self._pool.journal = journal
        return self._pool.cached_hashes

    def capacity_tokens(self, rank: int = 0) -> int:
        """The longest sequence whose KV fits the blocks that are not reserved for the classes above."""
        return (self._pool.num_blocks - self._pool.reservation.reserved_above(rank)) // self.groups * BLOCK_TOKENS

    def available_blocks(self, rank: int) -> int:
        """Blocks that the class may still take. Can be negative."""
        return self._pool.available_blocks(rank)

    def unused_reserve(self, rank: int) -> int:
        """Blocks that the class may still take from its own reserve."""
        return self._pool.reservation.unused(rank)

    def missing_reserve(self, rank: int) -> int:
        """Blocks of the class's reserve that are not available: 0, unless the reservation inequality is violated."""
        return self._pool.reservation.missing(rank, self._pool.free_blocks)

    def held_blocks(self, rank: int) -> int:
        """Blocks in block tables that count for the class."""
        return self._pool.held_blocks(rank)

    def cached_blocks(self, rank: int) -> int:
        """Free blocks with content that the class held last."""
        return self._pool.free_cached_blocks(rank)

    @property
    def returning_blocks(self) -> int:
        """Released blocks that are not free yet. Those that other requests share stay in use."""
        return self._step.returning_blocks

    @property
    def forks(self) -> bool:
        """Whether a choice can begin on its parent's blocks. A recurrent state does not go back to the prompt, and a
        window may have passed its end: such choices begin with prefix hits."""
        return self.states is None and self._windows is None

    @property
    def saves_states(self) -> bool:
        """Whether states are saved for reuse."""
        return self._prefix_cache

    @property
    def may_admit(self) -> bool:
        """Whether blocks may still be allocated to admitted requests in this step."""
        return self._step.allocation_budget > 0

    def begin_step(self) -> None:
        """Begin a step's budgets, and free returning blocks within them."""
        self._step.begin_step()

    def hurry_return(self) -> None:
        """Free another step's worth of returning blocks, because a running request needs them."""
        self._step.hurry_return()

    def hits(self, request: Request) -> PrefixHits:
        """The cached blocks of the longest prefix of the request's tokens. They are not pinned.

        The prefix excludes the last token, whose logits the next token is sampled from. A request that needs a result
        for every position of its prompt has no hits. With recurrent states, a state is saved at the end of the prefix.
        With KV in groups, each group has the blocks in its window before that end.
        """
        hits = request.hits
        if hits is None:
            hits = request.hits = PrefixHits()
        if limit := self._max_hits(request):
            if self.states is not None:
                self._refresh_to_state(self.states, hits, request, limit)
            elif hits.refresh(self._pool, request, limit) and self._windows is not None:
                self._windows.narrow(hits, request)
        return hits

    def match(self, request: Request) -> list[int]:
        """The blocks of `hits`."""
        return self.hits(request).blocks

    def demand(self, request: Request, parent: Request | None = None) -> BlockDemand:
        """The blocks that it takes to admit the request, or to fork it from a `parent` that has computed the prompt.

        Check `shortage` and pass the demand to `admit` or `fork`. In between, blocks may only be released.
        """
        if parent is not None:
            return BlockDemand(PrefixHits(), 1)  # the shared blocks are held by its class already
        hits = self.hits(request)
        return BlockDemand(hits, (blocks_for(len(request.tokens)) - len(hits.blocks)) * self.groups)

    def shortage(self, request: Request, demand: BlockDemand, keep_free: int = 0) -> int:
        """Blocks that are missing to meet the demand and leave `keep_free` blocks available to the request's class."""
        available = self._pool.available_after_hits(request.rank, demand.hits.survey)
        return max(0, keep_free + demand.num_new_blocks - available)

    @property
    def lent_blocks(self) -> int:
        """Blocks that are lent to be copied, and are back within about a millisecond."""
        return 0 if self.tier is None else self.tier.lent_blocks

    @property
    def fetching_blocks(self) -> int:
        """Blocks that are being fetched for waiting requests, and their cached prefixes."""
        return 0 if self.tier is None else self.tier.fetching_blocks

    def fetch(self, request: Request, demand: BlockDemand, keep_free: int, now_ns: int) -> Fetch | None:
        """Begin to fetch blocks that follow the request's hits from the second pool, or find the fetch that reads them.
        None: the request need not wait. At least `keep_free` blocks stay available to its class."""
        if self.tier is None or self.shortage(request, demand, keep_free):
            return None
        room = self._pool.available_after_hits(request.rank, demand.hits.survey) - keep_free
        return self.tier.fetch(request, demand.hits, self._max_hits(request), room, now_ns)

    def preemption_gain(self, rank: int, hits: Iterable[PrefixHits]) -> PreemptionGain:
        """Counts the blocks that preempting requests below the rank frees, apart from the blocks of `hits`."""
        return PreemptionGain(self._pool, [(found.all_blocks, found.survey) for found in hits if found.blocks], rank)

    def admit(self, request: Request, demand: BlockDemand) -> None:
        """Give a request without blocks its `demand`: the cached blocks first, then its own.

        Where it exceeds what this step may allocate, all blocks are pledged to the request, and `allocate_more`
        allocates them in the next steps. The caller has checked that there is no `shortage`.
        """
        assert not request.block_table, f"{request.id} is admitted twice"
        demand.hits.update_survey(self._pool, request)
        assert not self.shortage(request, demand), f"there are not enough blocks for {request.id}"
        request.holder = next(self._holders)
        hits, rank = demand.hits, request.rank
        if self._windows is not None:
            self._windows.begin(request, hits)
        blocks = hits.all_blocks
        if len(blocks) + demand.num_new_blocks <= self._step.allocation_budget:
            self._pool.acquire(blocks, rank, request.holder)
            request.block_table += hits.blocks
            self._extend(request, self._pool.allocate(demand.num_new_blocks, rank, request.tenant, request.holder))
            self._step.spend(len(blocks) + demand.num_new_blocks)
            self._begin(request, computed=len(hits.blocks) * BLOCK_TOKENS)
            self._begin_state(request, len(hits.blocks))
            return
        taken = self._blocks_taken(rank, hits.survey)
        self._step.begin_allocation(request, demand.num_new_blocks + taken)
        if self._windows is not None:  # the hits of all groups stand for one another: they are acquired together
            self._step.redeem(request, blocks, taken, 0)
            request.block_table += hits.blocks
        self._begin(request, computed=len(request.block_table) * BLOCK_TOKENS)
        self._begin_state(request, len(hits.blocks))

    def allocate_more(self, request: Request) -> bool:
        """Allocate the next part of the blocks of a running request that `is_allocating`, up to the last part.

        False, with nothing changed, where cached blocks of its demand are gone and no others are available.
        """
        assert request.is_allocating, f"{request.id} has its blocks"
        if self._windows is not None:
            return self._allocate_groups(request)
        table, rank, budget = request.block_table, request.rank, max(0, self._step.allocation_budget)
        cached: list[int] = []
        if request.computed == len(table) * BLOCK_TOKENS:  # otherwise it already has blocks behind its hits
            count = budget
            if self.states is not None:
                count = min(budget, request.state_tokens // BLOCK_TOKENS - len(table))
            cached = self._cached(request, len(table), count)
            if self.states is not None and len(cached) < count:
                return False  # its state stands for blocks that are gone
        num_new_blocks = min(blocks_for(len(request.tokens)) - len(table) - len(cached), budget - len(cached))
        taken = self._blocks_taken(rank, self._pool.survey(cached))
        if not self._step.raise_pledge(request, taken + num_new_blocks):
            return False
        table += self._step.redeem(request, cached, taken, num_new_blocks)
        self._advance(request, len(cached) * BLOCK_TOKENS, first_stay=request.admissions == 1)
        if len(table) == blocks_for(len(request.tokens)):
            self._step.end_allocation(request)
        return True

    def fork(self, parent: Request, child: Request, demand: BlockDemand) -> list[BlockCopy]:
        """Start `child` on the KV of the prompt that it shares with `parent`, which has computed it.

        The child recomputes the prompt's last token, to sample from its logits with its own seed. Earlier blocks are
        shared; the block of that token is copied (copy on write). The caller has checked that there is no `shortage`.
        """
        prompt_tokens = child.prompt_tokens
        assert self.forks, "a state does not go back to the prompt, and windows pass it: choices begin with prefix hits"
        check_fork(parent, child)
        assert not self.shortage(child, demand), f"there are not enough blocks for {child.id}"
        computed = prompt_tokens - 1
        shared = self._share_prompt(parent, computed // BLOCK_TOKENS)
        child.holder = next(self._holders)
        copied = self._pool.allocate(demand.num_new_blocks, child.rank, child.tenant, child.holder)
        if shared is not None:
            shared.requests += 1
            child.shared = shared
            child.block_table += shared.blocks
        source = parent.block_table[len(child.block_table)]
        child.block_table += copied
        self._step.spend(len(copied) + len(child.block_table) // FORKED_FOR_ONE)
        self._begin(child, computed=computed)
        child.block_hashes += parent.block_hashes[len(child.block_hashes) : computed // BLOCK_TOKENS]
        return [BlockCopy(source, copied[0])] if computed % BLOCK_TOKENS else []

    def blocks_needed(self, request: Request, tokens: int) -> int:
        """Free blocks that it takes to hold the KV of the request's first `tokens` tokens."""
        return max(0, blocks_for(tokens) - len(request.block_table)) * self.groups

    def grow(self, request: Request, tokens: int) -> bool:
        """Allocate blocks for the KV of the request's first `tokens` tokens. False, with nothing changed: not enough
        are available."""
        needed = self.blocks_needed(request, tokens)
        if needed > self._pool.available_blocks(request.rank):
            return False
        self._extend(request, self._pool.allocate(needed, request.rank, request.tenant, request.holder))
        return True

    def commit(self, request: Request, tokens: int) -> None:
        """Record that the KV of the next `tokens` tokens is computed, finite and final. Publish the blocks that they
        fill, and release those that windows have passed."""
        first = request.computed // BLOCK_TOKENS
        request.computed += tokens
        full = request.computed // BLOCK_TOKENS
        if full == first:
            return
        if self._prefix_cache:
            extend_hashes(request, full)
            for index in range(first, full):
                self._pool.publish(request.block_table[index], request.block_hashes[index])
            if self.tier is not None:
                self.tier.record_published(request, first, full)
            if request.state_saves and self.states is not None:
                self.states.publish(request)
        if self._windows is not None:
            if self._prefix_cache:
                self._windows.publish(request, first, full)
            self._windows.release_passed(request)

    def trim(self, request: Request) -> None:
        """Release the blocks past the request's tokens, which were allocated for drafts that were rejected, and what
        was kept for their states."""
        if request.state_saves and self.states is not None:
            self.states.trim(request)
        kept = blocks_for(len(request.tokens))
        if self._windows is not None:
            self._pool.release(self._windows.cut(request, kept), request.rank, request.holder)
            return
        self._pool.release(reversed(request.block_table[kept:]), request.rank, request.holder)
        del request.block_table[kept:]

    def release(self, request: Request, *, forget: bool = False) -> None:
        """Release all blocks. Published blocks stay cached, unless `forget`: the KV must not be reused.

        They are free at once or, beyond the step's budget, in one of the next steps.
        """
        if forget:
            self._pool.forget(held_blocks(request))
            if self.tier is not None:
                self.tier.forget(request.block_hashes[: request.computed // BLOCK_TOKENS])
        if request.is_allocating:
            self._step.end_allocation(request)
        if self.states is not None:
            self.states.end(request)
        shared, own = request.shared, request.block_table
        if self._windows is not None:
            own = self._windows.end(request)
        if shared is not None:
            own = own[len(shared.blocks) :]
            request.shared = None
            shared.requests -= 1
        self._step.give_back(own, request.rank, request.holder)
        if shared is not None and not shared.requests:
            self._step.give_back(shared.blocks, shared.rank, shared.holder)
        request.block_table = []
        request.computed = request.scheduled = 0

    def check(self, requests: Iterable[Request]) -> None:
        """Assert the invariants that hold between any two steps. `requests`: all unfinished ones."""
        requests = list(requests)
        for request in requests:
            check_table(self._pool, request)
        self._pool.check()
        lent = {} if self.tier is None else self.tier.held
        check_holders(self._pool, {**blocks_by_holder(requests, self._step.returns), **lent})
        if self.tier is not None:
            self.tier.check()
        self._step.check(requests)
        if self._windows is not None:
            self._windows.check(requests)
        if self.states is not None:
            self.states.check(requests)
            cached = self._pool.match(list(self.states.pool.hashes))
            assert len(cached) == len(self.states.pool.hashes), "a saved state outlives its block"

    def _refresh_to_state(self, states: SequenceStates, hits: PrefixHits, request: Request, limit: int) -> None:
        """Find the longest cached prefix that ends with a saved state."""
        while True:
            end = states.reusable_blocks(request, hits, limit)
            hits.refresh(self._pool, request, end)
            if len(hits.blocks) == end:
                return
            limit = len(hits.blocks)

    def _extend(self, request: Request, blocks: list[int]) -> None:
        if self._windows is None:
            request.block_table += blocks
        else:
            self._windows.extend(request, blocks)

    def _allocate_groups(self, request: Request) -> bool:
        """Allocate the next part of the blocks of all groups, at least one for each."""
        budget, table = self._step.allocation_budget, request.block_table
        if budget > 0:
            each = min(blocks_for(len(request.tokens)) - len(table), max(1, budget // self.groups))
            self._extend(request, self._step.redeem(request, [], 0, each * self.groups))
        if len(table) == blocks_for(len(request.tokens)):
            self._step.end_allocation(request)
        return True

    def _begin_state(self, request: Request, blocks: int) -> None:
        if self.states is not None:
            self.states.begin(request, blocks * BLOCK_TOKENS)

    def _begin(self, request: Request, *, computed: int) -> None:
        request.computed = 0
        self._advance(request, computed, first_stay=request.admissions == 0)
        request.hits = None

    def _advance(self, request: Request, tokens: int, *, first_stay: bool) -> None:
        """Advance past cached tokens. They count as `cached_tokens` in the first stay only: later hits repeat the
        request's own work."""
        request.computed += tokens
        request.scheduled = request.computed
        if first_stay:
            request.cached_tokens = request.computed

    def _blocks_taken(self, rank: int, hits: Survey) -> int:
        """By how many blocks acquiring these hits reduces what is available to the class."""
        return self._pool.available_blocks(rank) - self._pool.available_after_hits(rank, hits)

    def _max_hits(self, request: Request) -> int:
        use_cache = self._prefix_cache and not request.needs_whole_prompt
        return (len(request.tokens) - 1) // BLOCK_TOKENS if use_cache else 0

    def _cached(self, request: Request, first: int, count: int) -> list[int]:
        """The cached blocks of the request from block number `first` on, at most `count`. Uses known hashes only."""
        return self._pool.match(request.block_hashes[first : min(first + count, self._max_hits(request))])

    def _share_prompt(self, parent: Request, blocks: int) -> SharedPrompt | None:
        """Make the first `blocks` blocks of the parent's table shared with its forks. O(its other blocks)."""
        if parent.shared is None and blocks:
            own = next(self._holders)
            self._pool.move(parent.block_table[blocks:], parent.holder, own)
            parent.shared = SharedPrompt(parent.block_table[:blocks], parent.rank, parent.holder)
            parent.holder = own
        return parent.shared
