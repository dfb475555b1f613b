"""The pool and the cache against a plain dict: any order of events, every invariant after each."""

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
from engine.memory import BlockPool, KVCacheManager
from engine.memory.hashing import block_hash, salt_extra
from engine.memory.kv_cache import blocks_for
from engine.request import Request
from engine.simulation import make_request

Content = tuple[bytes, tuple[int, ...]]
"""A salt, and all tokens up to the end of a block: what the KV of that block is a function of."""


class KVCacheMachine(RuleBasedStateMachine):
    """Requests come, compute, grow, fork, are preempted and leave; `content` is the model of KV memory.

    `content[block]` is what was last written there in full. A hit is right when the block that it names was
    written with exactly the content that the request asks for.
    """

    waiting = Bundle("waiting")
    running = Bundle("running")

    @initialize(num_blocks=st.integers(1, 9))
    def start(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = KVCacheManager(self.pool)
        self.requests: dict[str, Request] = {}
        self.content: dict[int, Content] = {}
        self.names = 0

    @rule(
        target=waiting,
        heads=st.sampled_from([(), (0,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]),
        tail=st.sampled_from([1, BLOCK_TOKENS - 1, BLOCK_TOKENS]),
        salt=st.sampled_from([b"", b"", b"tenant"]),
    )
    def arrive(self, heads: tuple[int, ...], tail: int, salt: bytes) -> Request:
        self.names += 1
        tokens = [token for head in heads for token in [head] * BLOCK_TOKENS] + [0] * tail
        return make_request(f"r{self.names}", tokens, salt=salt)

    @rule(target=running, request=consumes(waiting), keep_free=st.integers(0, 2))
    def admit(self, request: Request, keep_free: int):  # type: ignore[no-untyped-def]
        free = self.pool.free_blocks
        hits = self.cache.match(request)
        for index, block in enumerate(hits):
            assert self.content[block] == self.written(request, index)
        if not self.cache.admit(request, keep_free=keep_free):
            assert self.pool.free_blocks == free
            assert request.block_table == []
            return multiple()
        assert self.pool.free_blocks >= keep_free
        assert request.block_table[: len(hits)] == hits
        assert request.computed == len(hits) * BLOCK_TOKENS < len(request.tokens)
        assert len(set(request.block_table)) == len(request.block_table)
        assert len(request.block_table) == blocks_for(len(request.tokens))
        self.requests[request.id] = request
        return request

    @rule(request=running, share=st.sampled_from([1.0, 1.0, 0.5]))
    def compute(self, request: Request, share: float) -> None:
        first, pending = request.computed // BLOCK_TOKENS, len(request.tokens) - request.computed
        if request.id not in self.requests or not pending:
            return
        self.cache.commit(request, max(1, int(pending * share)))
        for index in range(first, request.computed // BLOCK_TOKENS):
            self.content[request.block_table[index]] = self.written(request, index)

    @rule(request=running, tokens=st.lists(st.integers(0, 1), min_size=1, max_size=20))
    def extend(self, request: Request, tokens: list[int]) -> None:
        if request.id not in self.requests:
            return
        before = (list(request.block_table), self.pool.free_blocks)
        needed = self.cache.blocks_needed(request, len(request.tokens) + len(tokens))
        if self.cache.grow(request, len(request.tokens) + len(tokens)):
            assert self.pool.free_blocks == before[1] - needed
            request.tokens += tokens
        else:
            assert needed > self.pool.free_blocks
            assert (request.block_table, self.pool.free_blocks) == before

    @rule(request=running, drafts=st.integers(1, 40))
    def draft_and_reject(self, request: Request, drafts: int) -> None:
        if request.id in self.requests and self.cache.grow(request, len(request.tokens) + drafts):
            self.cache.trim(request)
            assert len(request.block_table) == blocks_for(len(request.tokens))

    @rule(target=running, parent=running)
    def fork(self, parent: Request):  # type: ignore[no-untyped-def]
        if parent.id not in self.requests or parent.computed < parent.prompt_tokens:
            return multiple()
        self.names += 1
        child = make_request(f"r{self.names}", parent.tokens[: parent.prompt_tokens], salt=parent.salt)
        copies = self.cache.fork(parent, child)
        if copies is None:
            assert self.pool.free_blocks == 0
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
        request.preemptions += 1
        return request

    @rule(request=consumes(running), forget=st.booleans())
    def leave(self, request: Request, forget: bool) -> None:
        if self.requests.pop(request.id, None) is not None:
            self.cache.release(request, forget=forget)

    @precondition(lambda self: self.pool.free_blocks > 0)
    @rule()
    def evict(self) -> None:
        """Something else takes all free blocks, writes to them, and is gone."""
        blocks = self.pool.allocate(self.pool.free_blocks)
        for block in blocks:
            self.content.pop(block, None)
        self.pool.release(blocks)

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check(self.requests.values())
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
        self.cache.check([])
        assert self.pool.free_blocks == self.pool.num_blocks

    @staticmethod
    def written(request: Request, index: int) -> Content:
        return request.salt, tuple(request.tokens[: (index + 1) * BLOCK_TOKENS])


KVCacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestKVCacheMachine = KVCacheMachine.TestCase
