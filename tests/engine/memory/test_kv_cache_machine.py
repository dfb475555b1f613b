"""The pool and the cache against a plain model: any order of events, every invariant after each."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from engine.config import BLOCK_TOKENS
from engine.memory import CapacityError, KVCacheManager
from engine.memory.hashing import block_hash, salt_extra
from engine.memory.kv_cache import blocks_for
from engine.request import Request, ServiceClass
from engine.simulation import make_request
from tests.engine.memory.pool_model import ModelledPool
from tests.engine.memory.support import admit, fork

Content = tuple[bytes, tuple[int, ...]]
"""A salt, and all tokens up to the end of a block: what the KV of that block is a function of."""

RESERVES = ((0.0,), (0.0, 0.0), (0.3, 0.0), (0.5, 0.4, 0.0), (0.3, 0.3, 0.3))
"""Of one class, or two, or three."""
HEADS = ((), (0,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (2, 0), (2, 1))
"""The blocks that a prompt begins with."""
TENANTS = ("", "one", "two")


class KVCacheMachine(RuleBasedStateMachine):
    """Requests come, compute, grow, fork, are preempted and leave; `content` is the model of KV memory.

    `content[block]` is what was last written there in full. A hit is right when the block that it names was
    written with exactly the content that the request asks for. Who may take blocks, and which are evicted, is the
    business of `ModelledPool`.
    """

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize(
        num_blocks=st.integers(1, 10),
        reserves=st.sampled_from(RESERVES),
        share=st.sampled_from([0.2, 0.5, 1.0]),
        blocks_a_step=st.sampled_from([1, 2, 1000]),
    )
    def start(self, num_blocks: int, reserves: tuple[float, ...], share: float, blocks_a_step: int) -> None:
        self.pool = ModelledPool(num_blocks)
        self.cache = KVCacheManager(self.pool, blocks_a_step=blocks_a_step)
        self.blocks_a_step = blocks_a_step
        self.classes = [
            ServiceClass(f"class-{rank}", priority=rank, reserved_fraction=fraction)
            for rank, fraction in enumerate(reserves)
        ]
        self.cache.reserve(self.classes, share)
        self.requests: dict[str, Request] = {}
        self.content: dict[int, Content] = {}
        self.names = 0

    @rule(
        target=waiting,
        heads=st.sampled_from(HEADS),
        tail=st.sampled_from([1, BLOCK_TOKENS - 1, BLOCK_TOKENS]),
        tenant=st.sampled_from(TENANTS),
        rank=st.integers(0, 2),
    )
    def arrive(self, heads: tuple[int, ...], tail: int, tenant: str, rank: int) -> Request:
        tokens = [token for head in heads for token in [head] * BLOCK_TOKENS] + [0] * tail
        return self.request(tokens, tenant, min(rank, len(self.classes) - 1))

    def request(self, tokens: list[int], tenant: str, rank: int) -> Request:
        self.names += 1
        service_class = self.classes[rank]
        request = make_request(
            f"r{self.names}", tokens, tenant=tenant, salt=tenant.encode(), service_class=service_class
        )
        request.rank = rank
        return request

    @rule(target=running, request=consumes(waiting), keep_free=st.integers(0, 2))
    def admit(self, request: Request, keep_free: int):  # type: ignore[no-untyped-def]
        free = self.pool.free_blocks
        hits = self.cache.match(request)
        room = self.pool.may_take(request.rank, hits)
        fits = blocks_for(len(request.tokens)) - len(hits) + keep_free <= room
        for index, block in enumerate(hits):
            assert self.content[block] == self.written(request, index)
        admitted = admit(self.cache, request, keep_free=keep_free)
        assert admitted == fits
        if not admitted:
            assert self.pool.free_blocks == free
            assert request.block_table == []
            return multiple()
        assert self.pool.may_take(request.rank) >= keep_free
        self.requests[request.id] = request
        if request.is_allocating:
            assert request.block_table == []
            return request
        assert request.block_table[: len(hits)] == hits
        assert request.computed == len(hits) * BLOCK_TOKENS < len(request.tokens)
        assert len(set(request.block_table)) == len(request.block_table)
        assert len(request.block_table) == blocks_for(len(request.tokens))
        return request

    @rule()
    def next_step(self) -> None:
        """A step begins: `blocks_a_step` of the returning blocks have returned."""
        returning = self.cache.returning_blocks
        self.cache.begin_step()
        assert self.cache.returning_blocks == max(0, returning - self.blocks_a_step)

    @rule(request=running)
    def allocate_more(self, request: Request) -> None:
        if request.id not in self.requests or not request.is_allocating:
            return
        self.cache.begin_step()
        before = len(request.block_table)
        if not self.cache.allocate_more(request):
            assert self.pool.may_take(request.rank) < self.blocks_a_step
            del self.requests[request.id]
            self.cache.release(request)
            return
        assert before < len(request.block_table) <= before + self.blocks_a_step
        assert request.is_allocating == (len(request.block_table) < blocks_for(len(request.tokens)))
        for index in range(request.computed // BLOCK_TOKENS):
            assert self.content[request.block_table[index]] == self.written(request, index)

    @rule(
        target=running,
        heads=st.sampled_from(HEADS[1:]),
        tenant=st.sampled_from(TENANTS),
        rank=st.integers(0, 2),
        leaves=st.booleans(),
    )
    def serve(self, heads: tuple[int, ...], tenant: str, rank: int, leaves: bool):  # type: ignore[no-untyped-def]
        """All of a short life in one go, so that there is much in the cache and little left to take."""
        request = self.arrive(heads, 1, tenant, rank)
        if self.admit(request, 0) is not request:
            return multiple()
        while request.is_allocating and request.id in self.requests:
            self.allocate_more(request)
        if request.id not in self.requests:
            return multiple()
        self.compute(request, 1.0)
        if leaves:
            self.leave(request, False)
            return multiple()
        return request

    @rule(request=running, share=st.sampled_from([1.0, 1.0, 0.5]))
    def compute(self, request: Request, share: float) -> None:
        first, pending = request.computed // BLOCK_TOKENS, len(request.tokens) - request.computed
        if request.id not in self.requests or request.is_allocating or not pending:
            return
        self.cache.commit(request, max(1, int(pending * share)))
        for index in range(first, request.computed // BLOCK_TOKENS):
            self.content[request.block_table[index]] = self.written(request, index)

    @rule(request=running, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def extend(self, request: Request, tokens: list[int]) -> None:
        if request.id not in self.requests or request.is_allocating:
            return
        before = (list(request.block_table), self.pool.free_blocks)
        needed = self.cache.blocks_needed(request, len(request.tokens) + len(tokens))
        fits = needed <= self.pool.may_take(request.rank)
        grown = self.cache.grow(request, len(request.tokens) + len(tokens))
        assert grown == fits
        if grown:
            assert self.pool.free_blocks == before[1] - needed
            request.tokens += tokens
        else:
            assert (request.block_table, self.pool.free_blocks) == before

    @rule(request=running, drafts=st.integers(1, 40))
    def draft_and_reject(self, request: Request, drafts: int) -> None:
        if request.id not in self.requests or request.is_allocating:
            return
        if self.cache.grow(request, len(request.tokens) + drafts):
            self.cache.trim(request)
            assert len(request.block_table) == blocks_for(len(request.tokens))

    @rule(target=running, parent=running)
    def fork(self, parent: Request):  # type: ignore[no-untyped-def]
        if parent.id not in self.requests or parent.computed < parent.prompt_tokens:
            return multiple()
        tokens = parent.tokens[: parent.prompt_tokens]
        child = self.request(tokens, parent.tenant, parent.rank)
        shared = parent.block_table[: (parent.prompt_tokens - 1) // BLOCK_TOKENS]
        room = self.pool.may_take(child.rank, shared)
        copies = fork(self.cache, parent, child)
        assert (copies is not None) == (room >= 1)
        if copies is None:
            return multiple()
        assert child.computed == child.prompt_tokens - 1
        own = child.computed // BLOCK_TOKENS
        assert child.block_table[:own] == parent.block_table[:own]
        copied = child.computed % BLOCK_TOKENS > 0
        assert copies == [(parent.block_table[own], child.block_table[own])][:copied]
        self.requests[child.id] = child
        return child

    @rule(target=waiting, request=consumes(running))
    def preempt(self, request: Request):  # type: ignore[no-untyped-def]
        if self.requests.pop(request.id, None) is None:
            return multiple()
        self.cache.release(request)
        assert (request.computed, request.block_table) == (0, [])
        request.admissions += 1
        return request

    @rule(request=consumes(running), forget=st.booleans())
    def leave(self, request: Request, forget: bool) -> None:
        if self.requests.pop(request.id, None) is not None:
            self.cache.release(request, forget=forget)

    @precondition(lambda self: self.pool.free_blocks > 0)
    @rule(rank=st.integers(0, 2), tenant=st.sampled_from(TENANTS), count=st.integers(1, 12))
    def evict(self, rank: int, tenant: str, count: int) -> None:
        """Something else takes blocks, as many as its class may have at most, writes to them, and is gone."""
        rank = min(rank, len(self.classes) - 1)
        room = self.pool.may_take(rank)
        if room < 0:
            return  # a class above shares many of its blocks, so its unused reserve exceeds the free ones
        blocks = self.pool.allocate(min(count, room), rank, tenant)
        for block in blocks:
            self.content.pop(block, None)
        self.pool.release(blocks, rank)

    @rule(rank=st.integers(0, 2), tenant=st.sampled_from(TENANTS))
    def ask_for_too_many(self, rank: int, tenant: str) -> None:
        rank = min(rank, len(self.classes) - 1)
        before = (self.pool.free_blocks, self.pool.cached_blocks)
        with pytest.raises(CapacityError):
            self.pool.allocate(max(0, self.pool.may_take(rank)) + 1, rank, tenant)
        assert (self.pool.free_blocks, self.pool.cached_blocks) == before

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check(self.requests.values())
        for rank in range(len(self.classes)):
            assert self.cache.available_blocks(rank) == self.pool.may_take(rank)
            assert self.cache.unused_reserve(rank) == self.pool.unused(rank)
            assert self.cache.missing_reserve(rank) == 0
        for request in self.requests.values():
            parent = None
            for index, known in enumerate(request.block_hashes):
                tokens = request.tokens[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS]
                extras = [salt_extra(request.salt)] if request.salt and not index else ()
                parent = block_hash(parent, tokens, extras)
                assert known == parent, "a hash is stale"

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for request in self.requests.values():
            self.cache.release(request)
        for _ in range(self.pool.num_blocks * (1 + self.names)):  # those that have left may still return blocks
            self.cache.begin_step()
        self.cache.check([])
        assert self.pool.free_blocks == self.pool.num_blocks

    @staticmethod
    def written(request: Request, index: int) -> Content:
        return request.salt, tuple(request.tokens[: (index + 1) * BLOCK_TOKENS])


KVCacheMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestKVCacheMachine = KVCacheMachine.TestCase
