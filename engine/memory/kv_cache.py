"""The KV of requests: what of a prompt is there already, the blocks for what is not, and what others may reuse."""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple

from engine.config import BLOCK_TOKENS
from engine.memory.block_pool import BlockPool, Survey
from engine.memory.leaving import Leaving
from engine.memory.prefix_hits import PrefixHits
from engine.memory.request_hashes import extend_hashes
from engine.memory.shared_prompt import SharedPrompt
from engine.request import Request, ServiceClass

BLOCKS_A_STEP = 1024
"""So many blocks are handed out in a step, beside those that running requests grow by, and as many taken back: about
half a millisecond each. What is more than that goes on in the next one."""


FORKED_FOR_ONE = 6
"""A fork only copies the ids and hashes of the blocks that it shares: this many take as long as handing out one."""


class BlockDemand(NamedTuple):
    """What a request takes when it is admitted: cached blocks to share, and so many of its own."""

    hits: PrefixHits
    fresh: int


class _Return(NamedTuple):
    """Blocks that a table of the rank has to give back, the last ones first."""

    blocks: list[int]
    rank: int
    holder: int


class BlockCopy(NamedTuple):
    """Copy the KV of block `source` over block `target` before the step's rows run (copy on write)."""

    source: int
    target: int


def blocks_for(tokens: int) -> int:
    """How many blocks hold the KV of `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


def _looks_alike(child: Request, parent: Request) -> bool:
    """Have they the same prompt, as far as its last block and the hashes tell that are known? O(1): whoever submits
    the choices of a call gives all of them the same."""
    end = child.prompt_tokens
    known = min(len(child.block_hashes), len(parent.block_hashes), end // BLOCK_TOKENS)
    hashes_agree = not known or child.block_hashes[known - 1] == parent.block_hashes[known - 1]
    last = max(0, end - BLOCK_TOKENS)
    return hashes_agree and child.tokens[last:end] == parent.tokens[last:end] and parent.prompt_tokens == end


class KVCacheManager:
    """Keeps the `block_table`, `block_hashes`, `computed` and `cached_tokens` of requests; nothing else writes them.

    The block table of a running request, of 16-token blocks:

        |  full, final: published, maybe shared  |  computed in part  |  allocated, not computed yet  |
        |<------------- computed // 16 --------->|<- written from here on: this request's alone ----->|

    So a block that is shared or published is never written, and only `fork`, which shares a block that is still
    being filled, has to copy one. Tables and tokens are append-only while a request runs; a request that does not
    run holds no blocks.

    What one request does to blocks between two steps is bounded, so that the others do not wait for it, however long it
    is. A request whose table does not fit into a step's `blocks_a_step` *boards*: it gets a part of its blocks in each
    step, and computes nothing before it has all; what is missing is pledged to it. And what is given back beyond as
    many blocks in a step is `returning`: it is free when its turn has come, in the order in which it was given back.

    Blocks are published when the step that filled them has landed, never while it is in flight. Blocks that are given
    back while a step in flight writes to them are not published, and can be had at once: whoever gets them writes in a
    later step.
    """

    def __init__(self, pool: BlockPool, *, prefix_cache: bool = True, blocks_a_step: int = BLOCKS_A_STEP) -> None:
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._blocks_a_step = blocks_a_step
        self._to_hand_out = self._to_take_back = blocks_a_step
        """What is left of that in this step."""
        self._returns: deque[_Return] = deque()
        self._returning_blocks = 0
        self._holders = count(1)

    def reserve(self, classes: Sequence[ServiceClass], tenant_cache_fraction: float) -> None:
        """Say which classes there are, in the order of their ranks, and what share a tenant may have."""
        num_blocks = self._pool.num_blocks
        reserved = [int(each.reserved_fraction * num_blocks) for each in classes]
        self._pool.reserve(reserved, max(1, int(tenant_cache_fraction * num_blocks)))

    @property
    def free_blocks(self) -> int:
        return self._pool.free_blocks

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    def capacity_tokens(self, rank: int = 0) -> int:
        """The longest sequence whose KV the pool can hold for a class: all but what is reserved above it."""
        return (self._pool.num_blocks - self._pool.reservation.reserved_above(rank)) * BLOCK_TOKENS

    def room(self, rank: int) -> int:
        """How many blocks the class may still take."""
        return self._pool.room(rank)

    def unused_reserve(self, rank: int) -> int:
        """How many blocks the class could still take of its own reserve."""
        return self._pool.reservation.unused(rank)

    def missing_reserve(self, rank: int) -> int:
        """How many blocks of the class's reserve are not there: 0, unless the inequality of reserves is broken."""
        return self._pool.reservation.missing(rank, self._pool.free_blocks)

    def held_blocks(self, rank: int) -> int:
        """Blocks in tables that count for the class."""
        return self._pool.held_blocks(rank)

    def cached_blocks(self, rank: int) -> int:
        """Free blocks with content that the class was the last to hold."""
        return self._pool.free_cached_blocks(rank)

    @property
    def returning_blocks(self) -> int:
        """Blocks in tables that nobody has any more: they are about to be free, unless others hold them, too."""
        return self._returning_blocks

    @property
    def may_admit(self) -> bool:
        """Are there blocks left that can be handed out in this step?"""
        return self._to_hand_out > 0

    def begin_step(self) -> None:
        """Take back what is returning, and hand out no more than a step may."""
        self._to_hand_out = self._to_take_back = self._blocks_a_step
        self._take_back()

    def hurry_return(self) -> None:
        """A running request needs blocks that are returning: take back a step's worth more."""
        self._to_take_back = self._blocks_a_step
        self._take_back()

    def hits(self, request: Request) -> PrefixHits:
        """The cached blocks that the request's tokens begin with. Pins nothing.

        Capped one token short of its tokens, as the next one is drawn from the logits of the last and there
        must be something to compute. A request that wants something of every position has to compute them all.
        """
        if request.hits is None:
            request.hits = PrefixHits()
        if limit := self._most_hits(request):
            request.hits.refresh(self._pool, request, limit)
        return request.hits

    def match(self, request: Request) -> list[int]:
        """The blocks of `hits`."""
        return self.hits(request).blocks

    def demand(self, request: Request, parent: Request | None = None) -> BlockDemand:
        """What it would take to admit the request, or to fork it from a parent that has computed the prompt."""
        if parent is not None:
            return BlockDemand(PrefixHits(), 1)  # what it shares is held, by its class
        hits = self.hits(request)
        return BlockDemand(hits, blocks_for(len(request.tokens)) - len(hits.blocks))

    def shortage(self, request: Request, demand: BlockDemand, keep_free: int = 0) -> int:
        """How many blocks are missing to meet the demand and leave `keep_free` of those that its class may take."""
        return max(0, keep_free + demand.fresh - self._pool.room_beside(request.rank, demand.hits.survey))

    def leaving(self, rank: int, hits: Iterable[PrefixHits]) -> Leaving:
        """What would be free without some requests below the rank, beside these hits, which are taken again."""
        return Leaving(self._pool, [(each.blocks, each.survey) for each in hits if each.blocks], rank)

    def admit(self, request: Request, *, keep_free: int = 0) -> bool:
        """Give a request that holds nothing the blocks of all its tokens, cached ones first; what of them does not fit
        into this step is pledged to it, and `board` goes on with it.

        False, with nothing changed, where that would leave its class fewer than `keep_free` blocks. Test and act
        are one, so they cannot disagree.
        """
        assert not request.block_table, f"{request.id} is admitted twice"
        demand = self.demand(request)
        if self.shortage(request, demand, keep_free):
            return False
        request.holder = next(self._holders)
        hits, rank = demand.hits, request.rank
        if len(hits.blocks) + demand.fresh <= self._to_hand_out:
            self._pool.acquire(hits.blocks, rank, request.holder)
            request.block_table += hits.blocks
            request.block_table += self._pool.allocate(demand.fresh, rank, request.tenant, request.holder)
            self._to_hand_out -= len(request.block_table)
            self._begin(request, computed=len(hits.blocks) * BLOCK_TOKENS)
            return True
        request.pledged_blocks = demand.fresh + self._room_taken(rank, hits.survey)
        self._pool.pledge(request.pledged_blocks, rank)
        request.boards = True
        self._begin(request, computed=0)
        return True

    def board(self, request: Request) -> bool:
        """Give a request that was admitted, and has started, the next part of its blocks. It has all when it `boards`
        no more.

        False, with nothing changed, where cached blocks that it counted on are gone, and there is no room for others.
        """
        assert request.boards, f"{request.id} has its blocks"
        table, rank, most = request.block_table, request.rank, max(0, self._to_hand_out)
        cached: list[int] = []
        if request.computed == len(table) * BLOCK_TOKENS:  # else it has the first of its own
            cached = self._cached(request, len(table), most)
        fresh = min(blocks_for(len(request.tokens)) - len(table) - len(cached), most - len(cached))
        taken = self._room_taken(rank, self._pool.survey(cached))
        if not self._raise_pledge(request, taken + fresh):
            return False
        self._pool.acquire(cached, rank, request.holder, pledged=taken)
        table += cached
        table += self._pool.redeem(fresh, rank, request.tenant, request.holder)
        request.pledged_blocks -= taken + fresh
        self._to_hand_out -= len(cached) + fresh
        self._advance(request, len(cached) * BLOCK_TOKENS, first_stay=request.admissions == 1)
        if len(table) == blocks_for(len(request.tokens)):
            self._end_boarding(request)
        return True

    def fork(self, parent: Request, child: Request, *, keep_free: int = 0) -> list[BlockCopy] | None:
        """Start `child` on the KV of the prompt that it has in common with `parent`, which has computed it.

        The child computes the prompt's last token itself, for logits to draw from with its own seed. The blocks
        before that one are shared; the block that it writes to is copied. None, with nothing changed, where that
        would leave its class fewer than `keep_free` blocks.
        """
        prompt_tokens = child.prompt_tokens
        assert not child.block_table, f"{child.id} is admitted twice"
        assert parent.computed >= prompt_tokens, f"{parent.id} has not computed the prompt of {child.id}"
        assert len(child.tokens) == prompt_tokens, f"{child.id} has tokens of its own already"
        assert _looks_alike(child, parent), f"{child.id} and {parent.id} differ in their prompt"
        assert child.salt == parent.salt, f"{child.id} and {parent.id} belong to different caches"
        assert child.rank == parent.rank, f"{child.id} and {parent.id} are of different classes"
        demand = self.demand(child, parent)
        if self.shortage(child, demand, keep_free):
            return None
        computed = prompt_tokens - 1
        shared = self._share_prompt(parent, computed // BLOCK_TOKENS)
        child.holder = next(self._holders)
        copied = self._pool.allocate(demand.fresh, child.rank, child.tenant, child.holder)
        if shared is not None:
            shared.requests += 1
            child.shared = shared
            child.block_table += shared.blocks
        source = parent.block_table[len(child.block_table)]
        child.block_table += copied
        self._to_hand_out -= len(copied) + len(child.block_table) // FORKED_FOR_ONE
        self._begin(child, computed=computed)
        child.block_hashes += parent.block_hashes[len(child.block_hashes) : computed // BLOCK_TOKENS]
        return [BlockCopy(source, copied[0])] if computed % BLOCK_TOKENS else []

    def blocks_needed(self, request: Request, tokens: int) -> int:
        """How many free blocks it takes to hold the KV of the request's first `tokens` tokens."""
        return max(0, blocks_for(tokens) - len(request.block_table))

    def grow(self, request: Request, tokens: int) -> bool:
        """Make room for the KV of the request's first `tokens` tokens. False, with nothing changed: no room."""
        needed = self.blocks_needed(request, tokens)
        if needed > self._pool.room(request.rank):
            return False
        request.block_table += self._pool.allocate(needed, request.rank, request.tenant, request.holder)
        return True

    def commit(self, request: Request, tokens: int) -> None:
        """The KV of the next `tokens` tokens is computed, finite and final: publish the blocks that it fills."""
        first = request.computed // BLOCK_TOKENS
        request.computed += tokens
        full = request.computed // BLOCK_TOKENS
        if full == first or not self._prefix_cache:
            return
        extend_hashes(request, full)
        for index in range(first, full):
            self._pool.publish(request.block_table[index], request.block_hashes[index])

    def trim(self, request: Request) -> None:
        """Give back the blocks past the request's tokens: those grown for drafts that were then rejected."""
        kept = blocks_for(len(request.tokens))
        self._pool.release(reversed(request.block_table[kept:]), request.rank, request.holder)
        del request.block_table[kept:]

    def release(self, request: Request, *, forget: bool = False) -> None:
        """Give back all blocks. What was published stays cached, unless `forget`: the KV is not to be trusted.

        They are free at once, or, where a step has taken back as many as it may, in one of the next ones.
        """
        if forget:
            self._pool.forget(request.block_table)
        if request.boards:
            self._end_boarding(request)
        shared, own = request.shared, request.block_table
        if shared is not None:
            own = own[len(shared.blocks) :]
            request.shared = None
            shared.requests -= 1
        self._return(own, request.rank, request.holder)
        if shared is not None and not shared.requests:
            self._return(shared.blocks, shared.rank, shared.holder)
        request.block_table = []
        request.computed = request.scheduled = 0

    def check(self, requests: Iterable[Request]) -> None:
        """State what holds between any two steps; `requests` are all that are not finished."""
        requests = list(requests)
        for request in requests:
            self._check_table(request)
        self._pool.check()
        held: dict[int, list[int]] = {each.holder: each.blocks for each in self._returns}
        for request in requests:
            shared = 0
            if request.shared is not None:
                shared = len(request.shared.blocks)
                held[request.shared.holder] = request.shared.blocks
                assert request.block_table[:shared] == request.shared.blocks, f"{request.id} has left a shared prompt"
                sharing = [other for other in requests if other.shared is request.shared]
                assert len(sharing) == request.shared.requests, "those that share a prompt are miscounted"
            if request.block_table:
                assert request.holder not in held, f"{request.id} has the number of another"
                held[request.holder] = request.block_table[shared:]
        self._check_holders(held)
        assert self._returning_blocks == sum(len(each.blocks) for each in self._returns), "what returns is miscounted"
        ranks = range(len(self._pool.reservation.reserved))
        pledged = [sum(request.pledged_blocks for request in requests if request.rank == rank) for rank in ranks]
        assert pledged == [self._pool.pledged_blocks(rank) for rank in ranks], "what is pledged is miscounted"

    def _check_table(self, request: Request) -> None:
        table, full = request.block_table, request.computed // BLOCK_TOKENS
        assert len(set(table)) == len(table), f"{request.id} holds a block twice"
        reached = max(request.computed, request.scheduled)
        assert reached <= len(table) * BLOCK_TOKENS, f"{request.id} has computed KV without a block"
        assert request.computed <= len(request.tokens), f"{request.id} has computed more than its tokens"
        assert len(request.block_hashes) <= len(request.tokens) // BLOCK_TOKENS, f"{request.id} hashed ahead"
        assert request.boards or not request.pledged_blocks, f"{request.id} has its blocks, and more are pledged to it"
        for block in table[full:]:
            assert self._pool.references(block) == 1, f"{request.id} would write to shared block {block}"
            assert self._pool.hash_of(block) is None, f"{request.id} would write to cached block {block}"
        for block, content in zip(table[:full], request.block_hashes, strict=False):
            assert self._pool.hash_of(block) in (None, content), f"{request.id} reads another's block {block}"

    def _check_holders(self, held: dict[int, list[int]]) -> None:
        """`held` are the blocks that each number stands for."""
        holders: list[list[int]] = [[] for _ in range(self._pool.num_blocks)]
        for holder, blocks in held.items():
            for block in blocks:
                holders[block].append(holder)
        for block, numbers in enumerate(holders):
            references = self._pool.references(block)
            assert references == len(numbers), f"block {block} has {references} references, {len(numbers)} hold it"
        for holder, blocks in held.items():
            alone, counted = sum(holders[block] == [holder] for block in blocks), self._pool.alone.get(holder, 0)
            assert alone == counted, f"{alone} blocks are held alone, {counted} counted"

    def _begin(self, request: Request, *, computed: int) -> None:
        request.computed = 0
        self._advance(request, computed, first_stay=request.admissions == 0)
        request.hits = None

    def _advance(self, request: Request, tokens: int, *, first_stay: bool) -> None:
        """The KV of the next tokens was there already. A later hit repeats the request's own work and is no saving."""
        request.computed += tokens
        request.scheduled = request.computed
        if first_stay:
            request.cached_tokens = request.computed

    def _room_taken(self, rank: int, hits: Survey) -> int:
        """By how much less the class may allocate once it has acquired these."""
        return self._pool.room(rank) - self._pool.room_beside(rank, hits)

    def _most_hits(self, request: Request) -> int:
        use_cache = self._prefix_cache and not request.needs_whole_prompt
        return (len(request.tokens) - 1) // BLOCK_TOKENS if use_cache else 0

    def _cached(self, request: Request, first: int, most: int) -> list[int]:
        """The cached blocks from number `first` of the request on, of those whose hashes are known."""
        return self._pool.match(request.block_hashes[first : min(first + most, self._most_hits(request))])

    def _raise_pledge(self, request: Request, blocks: int) -> bool:
        """Pledge at least so many blocks to the request: others may have freed blocks that it was to share."""
        missing = max(0, blocks - request.pledged_blocks)
        if missing > self._pool.room(request.rank):
            return False
        self._pool.pledge(missing, request.rank)
        request.pledged_blocks += missing
        return True

    def _end_boarding(self, request: Request) -> None:
        self._pool.unpledge(request.pledged_blocks, request.rank)
        request.pledged_blocks = 0
        request.boards = False

    def _share_prompt(self, parent: Request, blocks: int) -> SharedPrompt | None:
        """The first blocks of the parent's table are those of all its forks from now on. O(its other blocks)."""
        if parent.shared is None and blocks:
            own = next(self._holders)
            self._pool.move(parent.block_table[blocks:], parent.holder, own)
            parent.shared = SharedPrompt(parent.block_table[:blocks], parent.rank, parent.holder)
            parent.holder = own
        return parent.shared

    def _return(self, blocks: list[int], rank: int, holder: int) -> None:
        if blocks:
            self._returns.append(_Return(blocks, rank, holder))
            self._returning_blocks += len(blocks)
            self._take_back()

    def _take_back(self) -> None:
        """As many of the returning blocks as this step still may."""
        while self._returns and self._to_take_back:
            blocks, rank, holder = self._returns[0]
            taken = blocks[-self._to_take_back :]
            del blocks[-self._to_take_back :]
            taken.reverse()
            self._pool.release(taken, rank, holder)
            self._to_take_back -= len(taken)
            self._returning_blocks -= len(taken)
            if not blocks:
                self._returns.popleft()
