"""Fetches blocks of the second pool into the pool in memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.memory.block_pool import BlockPool
from engine.memory.tiers.index import TierIndex
from engine.memory.tiers.leases import Leases
from engine.memory.tiers.orders import BlockRecord, FetchEnd, FetchOrder
from engine.memory.tiers.speed import CopySpeed
from engine.memory.tiers.stats import TierCounts

MAX_FETCH_BLOCKS = 1024
"""Blocks of one fetch: 16,384 tokens. A longer prefix takes several, as allocating takes time between two steps."""
POOL_SHARE = 0.25
"""Fraction of the pool that fetches in progress may fill. A disk that does not answer holds no more."""
FETCH_WAIT_NS = 2_000_000_000
"""Time after which requests no longer wait for a fetch, and none is begun until it ends."""

PredictComputing = Callable[[int, int], int]
"""Nanoseconds of computing tokens: (first position, tokens)."""


class Wanted:
    """A request's blocks that are not in memory. `hashes`: those that are stored, from block number `first` on."""

    __slots__ = ("first", "hashes", "hits", "rank", "salt", "tenant")

    def __init__(
        self, hashes: Sequence[bytes], first: int, hits: Sequence[int], rank: int, tenant: str, salt: bytes
    ) -> None:
        """`hits`: its cached blocks before them."""
        self.hashes, self.first, self.hits = hashes, first, hits
        self.rank, self.tenant, self.salt = rank, tenant, salt


@dataclass(slots=True)
class Fetch:
    """Blocks that are being read. `barrier`: steps that must be complete before they may be written. `end`: the number
    of blocks of the prompt that are cached once it has ended well. `waits`: requests wait for it."""

    order: FetchOrder
    first: int
    holder: int
    barrier: int
    begun_ns: int
    computing_ns: int
    handed_out: bool = False
    waits: bool = True

    @property
    def end(self) -> int:
        return self.first + len(self.order.records)


class Fetching:
    """The fetches in progress, and the decision to begin one."""

    def __init__(
        self,
        pool: BlockPool,
        index: TierIndex,
        leases: Leases,
        speed: CopySpeed,
        counts: TierCounts,
        block_tokens: int,
        predict_ns: PredictComputing,
    ) -> None:
        self._pool = pool
        self._index = index
        self._leases = leases
        self._speed = speed
        self._counts = counts
        self._block_tokens = block_tokens
        self._predict_ns = predict_ns
        self._fetches: dict[int, Fetch] = {}
        self._of_hash: dict[bytes, Fetch] = {}
        self._max_blocks = max(1, int(POOL_SHARE * pool.num_blocks))

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def blocks(self) -> int:
        """Blocks that are being read."""
        return sum(len(fetch.order.records) for fetch in self._fetches.values())

    @property
    def next_due_ns(self) -> int | None:
        """When the requests of a fetch stop waiting."""
        return min((fetch.begun_ns + FETCH_WAIT_NS for fetch in self._fetches.values() if fetch.waits), default=None)

    def in_progress(self, block_hash: bytes) -> Fetch | None:
        """The fetch that is reading the block of this hash, if requests may still wait for it."""
        fetch = self._of_hash.get(block_hash)
        return fetch if fetch is not None and fetch.waits else None

    def begin(self, number: int, wanted: Wanted, room: int, barrier: int, now_ns: int) -> Fetch | None:
        """Fetch blocks, as far as `room` blocks may be allocated. None: that is slower than computing, there is no
        room, or the copier is late."""
        if any(not fetch.waits for fetch in self._fetches.values()):
            return None
        busy = self.blocks
        count = min(len(wanted.hashes), room, MAX_FETCH_BLOCKS, self._max_blocks - busy)
        if count <= 0:
            return None
        start, tokens = wanted.first * self._block_tokens, count * self._block_tokens
        computing_ns = self._predict_ns(start, tokens)
        if computing_ns <= (busy + count) * self._speed.block_ns:
            return None
        hashes = wanted.hashes[:count]
        holder, blocks = self._leases.take(wanted.hits, count, wanted.rank, wanted.tenant)
        slots = self._index.begin_read(hashes)
        records = [BlockRecord(*each, wanted.salt) for each in zip(blocks, hashes, slots, strict=True)]
        fetch = Fetch(FetchOrder(number, tuple(records)), wanted.first, holder, barrier, now_ns, computing_ns)
        self._fetches[number] = fetch
        self._of_hash.update(dict.fromkeys(hashes, fetch))
        return fetch

    def ready(self, completed_steps: int) -> list[FetchOrder]:
        """The orders that may be handed out: no step in flight writes to their blocks."""
        ready = [fetch for fetch in self._fetches.values() if not fetch.handed_out and fetch.barrier <= completed_steps]
        for fetch in ready:
            fetch.handed_out = True
        return [fetch.order for fetch in ready]

    def overdue(self, now_ns: int) -> list[int]:
        """The numbers of the fetches that requests no longer wait for from now on."""
        late = [fetch for fetch in self._fetches.values() if fetch.waits and fetch.begun_ns + FETCH_WAIT_NS <= now_ns]
        for fetch in late:
            fetch.waits = False
        return [fetch.order.number for fetch in late]

    def end(self, report: FetchEnd, publish: Callable[[bytes, Sequence[bytes], int], None], now_ns: int) -> int | None:
        """Publish the blocks that are filled, and release all. Returns the slot of the record that could not be read,
        whose hash is dropped. `publish`: called with the salt, the published hashes and the number of the first."""
        fetch = self._fetches.pop(report.number)
        records, filled = fetch.order.records, report.blocks
        assert fetch.handed_out, "a fetch ends before it was handed out"
        assert 0 <= filled <= len(records), "more blocks are filled than were wanted"
        for record in records:
            del self._of_hash[record.block_hash]
            self._index.end_read(record.block_hash, record.slot)
        good = records[:filled]
        for record in good:
            self._pool.publish(record.block, record.block_hash)
        if good:
            publish(good[0].salt, [record.block_hash for record in good], fetch.first)
        self._leases.end(fetch.holder)
        self._account(fetch, filled, report.elapsed_ns, now_ns)
        if filled == len(records):
            return None
        return self._index.drop(records[filled].block_hash)

    def _account(self, fetch: Fetch, filled: int, elapsed_ns: int, now_ns: int) -> None:
        counts, tokens = self._counts, filled * self._block_tokens
        self._speed.observe(filled, elapsed_ns)
        counts.read_blocks += filled
        counts.failed_blocks += filled < len(fetch.order.records)
        computing_ns = self._predict_ns(fetch.first * self._block_tokens, tokens) if filled else 0
        gain_ns = computing_ns - max(0, now_ns - fetch.begun_ns)
        if gain_ns >= 0:
            counts.saved_ns += gain_ns
        else:
            counts.lost_ns -= gain_ns

    def check(self) -> None:
        """Assert that each fetch holds its blocks, and reads stored records."""
        held = self._leases.held
        for fetch in self._fetches.values():
            blocks = [record.block for record in fetch.order.records]
            assert list(held[fetch.holder])[-len(blocks) :] == blocks, "a fetch has lost its blocks"
            assert all(self._pool.hash_of(block) is None for block in blocks), "a block is published while it is filled"
            assert all(self._of_hash[record.block_hash] is fetch for record in fetch.order.records)
        assert len(self._of_hash) == self.blocks, "hashes in progress are miscounted"
