"""The KV of requests: what of a prompt is there already, the blocks for what is not, and what others may reuse."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from engine.config import BLOCK_TOKENS
from engine.memory.block_pool import BlockPool
from engine.memory.hashing import block_hash, salt_extra
from engine.request import Request, ServiceClass


class BlockDemand(NamedTuple):
    """What a request takes when it is admitted: cached blocks to share, and so many of its own."""

    hits: list[int]
    fresh: int


class BlockCopy(NamedTuple):
    """Copy the KV of block `source` over block `target` before the step's rows run (copy on write)."""

    source: int
    target: int


def blocks_for(tokens: int) -> int:
    """How many blocks hold the KV of `tokens` tokens."""
    return -(-tokens // BLOCK_TOKENS)


class KVCacheManager:
    """Keeps the `block_table`, `block_hashes`, `computed` and `cached_tokens` of requests; nothing else writes them.

    The block table of a running request, of 16-token blocks:

        |  full, final: published, maybe shared  |  computed in part  |  allocated, not computed yet  |
        |<------------- computed // 16 --------->|<- written from here on: this request's alone ----->|

    So a block that is shared or published is never written, and only `fork`, which shares a block that is still
    being filled, has to copy one. Tables and tokens are append-only while a request runs; a request that does not
    run holds no blocks.

    Blocks are published when the step that filled them has landed, never while it is in flight. Blocks that are given
    back while a step in flight writes to them are not published, and can be had at once: whoever gets them writes in a
    later step.
    """

    def __init__(self, pool: BlockPool, *, prefix_cache: bool = True) -> None:
        self._pool = pool
        self._prefix_cache = prefix_cache

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

    def match(self, request: Request) -> list[int]:
        """The cached blocks that the request's tokens begin with. Pins nothing.

        Capped one token short of its tokens, as the next one is drawn from the logits of the last and there
        must be something to compute. A request that wants something of every position has to compute them all.
        """
        if not self._prefix_cache or request.needs_whole_prompt:
            return []
        return self._pool.match(self._hashes(request, (len(request.tokens) - 1) // BLOCK_TOKENS))

    def demand(self, request: Request, parent: Request | None = None) -> BlockDemand:
        """What it would take to admit the request, or to fork it from a parent that has computed the prompt."""
        if parent is None:
            hits = self.match(request)
            return BlockDemand(hits, blocks_for(len(request.tokens)) - len(hits))
        return BlockDemand(parent.block_table[: (request.prompt_tokens - 1) // BLOCK_TOKENS], 1)

    def shortage(self, request: Request, demand: BlockDemand, keep_free: int = 0) -> int:
        """How many blocks are missing to meet the demand and leave `keep_free` of those that its class may take."""
        return max(0, keep_free + demand.fresh - self._pool.room(request.rank, demand.hits))

    def freed_by(self, victim: Request, demand: BlockDemand, others: Counter[int]) -> list[int]:
        """The blocks that would be free without the victim, beside those that the demand takes again.

        `others` counts the references that victims chosen before it give back.
        """
        pool = self._pool
        table = [block for block in victim.block_table if pool.references(block) - others[block] == 1]
        hits = set(demand.hits)
        return [block for block in table if block not in hits]

    def admit(self, request: Request, *, keep_free: int = 0) -> bool:
        """Give a request that holds nothing the blocks of all its tokens, cached ones first.

        False, with nothing changed, where that would leave its class fewer than `keep_free` blocks. Test and act
        are one, so they cannot disagree.
        """
        assert not request.block_table, f"{request.id} is admitted twice"
        demand = self.demand(request)
        if self.shortage(request, demand, keep_free):
            return False
        hits = demand.hits
        self._pool.acquire(hits, request.rank)
        self._begin(request, hits + self._allocate(request, demand.fresh), computed=len(hits) * BLOCK_TOKENS)
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
        assert child.tokens == parent.tokens[:prompt_tokens], f"{child.id} and {parent.id} differ in their prompt"
        assert child.salt == parent.salt, f"{child.id} and {parent.id} belong to different caches"
        demand = self.demand(child, parent)
        if self.shortage(child, demand, keep_free):
            return None
        computed = prompt_tokens - 1
        shared = demand.hits
        self._pool.acquire(shared, child.rank)
        copied = self._allocate(child, demand.fresh)
        self._begin(child, shared + copied, computed=computed)
        child.block_hashes += parent.block_hashes[len(child.block_hashes) : len(shared)]
        return [BlockCopy(parent.block_table[len(shared)], copied[0])] if computed % BLOCK_TOKENS else []

    def blocks_needed(self, request: Request, tokens: int) -> int:
        """How many free blocks it takes to hold the KV of the request's first `tokens` tokens."""
        return max(0, blocks_for(tokens) - len(request.block_table))

    def grow(self, request: Request, tokens: int) -> bool:
        """Make room for the KV of the request's first `tokens` tokens. False, with nothing changed: no room."""
        needed = self.blocks_needed(request, tokens)
        if needed > self._pool.room(request.rank):
            return False
        request.block_table.extend(self._allocate(request, needed))
        return True

    def commit(self, request: Request, tokens: int) -> None:
        """The KV of the next `tokens` tokens is computed, finite and final: publish the blocks that it fills."""
        first = request.computed // BLOCK_TOKENS
        request.computed += tokens
        full = request.computed // BLOCK_TOKENS
        if full == first or not self._prefix_cache:
            return
        while len(request.block_hashes) < full:
            _hash_next_block(request)
        for index in range(first, full):
            self._pool.publish(request.block_table[index], request.block_hashes[index])

    def trim(self, request: Request) -> None:
        """Give back the blocks past the request's tokens: those grown for drafts that were then rejected."""
        kept = blocks_for(len(request.tokens))
        self._pool.release(reversed(request.block_table[kept:]), request.rank)
        del request.block_table[kept:]

    def release(self, request: Request, *, forget: bool = False) -> None:
        """Give back all blocks. What was published stays cached, unless `forget`: the KV is not to be trusted."""
        if forget:
            self._pool.forget(request.block_table)
        self._pool.release(reversed(request.block_table), request.rank)
        request.block_table.clear()
        request.computed = request.scheduled = 0

    def check(self, requests: Iterable[Request]) -> None:
        """State what holds between any two steps; `requests` are all that are not finished."""
        self._pool.check()
        holders = [0] * self._pool.num_blocks
        for request in requests:
            table, full = request.block_table, request.computed // BLOCK_TOKENS
            assert len(set(table)) == len(table), f"{request.id} holds a block twice"
            reached = max(request.computed, request.scheduled)
            assert reached <= len(table) * BLOCK_TOKENS, f"{request.id} has computed KV without a block"
            assert request.computed <= len(request.tokens), f"{request.id} has computed more than its tokens"
            assert len(request.block_hashes) <= len(request.tokens) // BLOCK_TOKENS, f"{request.id} hashed ahead"
            for block in table:
                holders[block] += 1
            for block in table[full:]:
                assert self._pool.references(block) == 1, f"{request.id} would write to shared block {block}"
                assert self._pool.hash_of(block) is None, f"{request.id} would write to cached block {block}"
            for block, content in zip(table[:full], request.block_hashes, strict=False):
                assert self._pool.hash_of(block) in (None, content), f"{request.id} reads another's block {block}"
        for block, count in enumerate(holders):
            references = self._pool.references(block)
            assert references == count, f"block {block} has {references} references, {count} tables hold it"

    def _allocate(self, request: Request, count: int) -> list[int]:
        return self._pool.allocate(count, request.rank, request.tenant)

    def _begin(self, request: Request, block_table: list[int], *, computed: int) -> None:
        request.block_table.extend(block_table)
        request.computed = request.scheduled = computed
        if request.admissions == 0:  # a later hit repeats the request's own work and is not a saving
            request.cached_tokens = computed

    def _hashes(self, request: Request, count: int) -> Iterator[bytes]:
        """The hashes of the first `count` blocks; one not known yet is computed when it is reached."""
        for index in range(count):
            if index == len(request.block_hashes):
                _hash_next_block(request)
            yield request.block_hashes[index]


def _hash_next_block(request: Request) -> None:
    """Each full block is hashed once in the life of a request: tokens are only ever appended."""
    known = request.block_hashes
    start = len(known) * BLOCK_TOKENS
    tokens = request.tokens[start : start + BLOCK_TOKENS]
    if known:
        known.append(block_hash(known[-1], tokens))
    else:
        known.append(block_hash(None, tokens, [salt_extra(request.salt)] if request.salt else ()))
