"""Chooses the blocks that are written to the second pool next."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.memory.block_pool import BlockPool

EVICTION_MARGIN_BLOCKS = 64
"""Blocks that are this close to their eviction are written: about what a step's admissions evict."""
MAX_QUEUED_FACTOR = 4
"""Hashes that wait for a time of idleness, or to be written, for each block of the pool. The oldest are forgotten."""
MATURED_AT_ONCE = 1024
"""Hashes that become idle in one update at most: a fraction of a millisecond."""
CANDIDATES_AT_ONCE = 256
"""Queued hashes that are looked at in one update at most."""


class Origin(NamedTuple):
    """Of a published hash: the salt of its tenant, and the number of the block in its prompt."""

    salt: bytes
    number: int


class _Idle(NamedTuple):
    """The blocks of a request that released them. `due_ns`: when they have been idle for long enough."""

    due_ns: int
    released_ns: int
    hashes: Sequence[bytes]


class WriteBack:
    """Candidates in the order of their worth: of preempted requests, next to be evicted, and idle.

    The end of a prompt comes before its beginning, as what is written first is overwritten first.
    """

    def __init__(self, pool: BlockPool, idle_ns: int) -> None:
        self._pool = pool
        self._idle_ns = idle_ns
        self._max_queued = MAX_QUEUED_FACTOR * pool.num_blocks
        self._preempted: deque[bytes] = deque()
        self._waiting: deque[_Idle] = deque()
        self._waiting_hashes = 0
        self._idle: deque[bytes] = deque()
        self._released_ns: dict[bytes, int] = {}
        self._offered: set[bytes] = set()
        """Blocks that were about to be evicted and have not been used since: they are offered once, or a small second
        pool would write the same blocks again and again."""
        self.origins: dict[bytes, Origin] = {}
        """Of each published hash whose tenant has a salt."""

    @property
    def next_due_ns(self) -> int | None:
        """When the next blocks have been idle for long enough."""
        return self._waiting[0].due_ns if self._waiting else None

    @property
    def has_candidates(self) -> bool:
        """Whether hashes are queued to be written; those that are about to be evicted are not counted."""
        return bool(self._preempted or self._idle)

    def publish(self, salt: bytes, hashes: Sequence[bytes], first: int) -> None:
        """Blocks were published, from number `first` of their prompt on."""
        for number, block_hash in enumerate(hashes, first):
            self.origins[block_hash] = Origin(salt, number)

    def unpublish(self, block_hash: bytes) -> None:
        """The hash is no longer published."""
        self.origins.pop(block_hash, None)
        self._released_ns.pop(block_hash, None)
        self._offered.discard(block_hash)

    def add_preempted(self, hashes: Sequence[bytes]) -> None:
        """A preempted request has released these blocks."""
        self._preempted += reversed(hashes)
        while len(self._preempted) > self._max_queued:
            self._preempted.popleft()

    def add_released(self, hashes: Sequence[bytes], now_ns: int) -> None:
        """A request that left has released these blocks."""
        hashes = [block_hash for block_hash in hashes if block_hash in self.origins]
        self._released_ns.update(dict.fromkeys(hashes, now_ns))
        self._offered.difference_update(hashes)
        self._waiting.append(_Idle(now_ns + self._idle_ns, now_ns, hashes))
        self._waiting_hashes += len(hashes)
        while self._waiting_hashes > self._max_queued:
            self._waiting_hashes -= len(self._waiting.popleft().hashes)

    def mature(self, now_ns: int) -> None:
        """Queue the blocks that have been idle for long enough and were not used since."""
        count = 0
        while self._waiting and self._waiting[0].due_ns <= now_ns and count < MATURED_AT_ONCE:
            idle = self._waiting.popleft()
            self._waiting_hashes -= len(idle.hashes)
            count += len(idle.hashes)
            self._idle += [each for each in reversed(idle.hashes) if self._released_ns.get(each) == idle.released_ns]
        while len(self._idle) > self._max_queued:
            self._idle.popleft()

    def candidates(self) -> Iterator[tuple[bytes, bool]]:
        """At most `CANDIDATES_AT_ONCE` of each kind in order, and whether the block should be kept in memory. A queued
        hash is removed when the next one is asked for. Blocks are not always free or published any more."""
        for _ in range(min(CANDIDATES_AT_ONCE, len(self._preempted))):
            yield self._preempted[0], True
            self._preempted.popleft()
        if self._pool.empty_blocks < EVICTION_MARGIN_BLOCKS:
            for block in self._pool.next_evicted(EVICTION_MARGIN_BLOCKS):
                block_hash = self._pool.hash_of(block)
                assert block_hash is not None, "a block without content is to be evicted"
                if block_hash not in self._offered:
                    yield block_hash, False
                    self._offered.add(block_hash)
        for _ in range(min(CANDIDATES_AT_ONCE, len(self._idle))):
            yield self._idle[0], False
            self._idle.popleft()

    def check(self) -> None:
        """Assert that what is known of hashes is known of published ones."""
        assert all(self._pool.is_cached(block_hash) for block_hash in self.origins), "an origin outlives its block"
        assert self._waiting_hashes == sum(len(idle.hashes) for idle in self._waiting), "idle hashes are miscounted"
