"""The second pool as the scheduler sees it."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from engine.config import BLOCK_TOKENS
from engine.memory.block_pool import BlockPool
from engine.memory.prefix_hits import PrefixHits
from engine.memory.request_hashes import extend_hashes
from engine.memory.tiers.fetching import Fetch, Fetching, PredictComputing, Wanted
from engine.memory.tiers.index import TierIndex
from engine.memory.tiers.keys import owner_of
from engine.memory.tiers.leases import Leases
from engine.memory.tiers.orders import BlockRecord, CopiedOut, EraseOrder, FetchEnd, Order, Report, WriteEnd, WriteOrder
from engine.memory.tiers.speed import CopySpeed
from engine.memory.tiers.stats import TierCounts, TierStats
from engine.memory.tiers.write_back import WriteBack
from engine.request import Request

IDLE_NS = 30_000_000_000
WRITE_BLOCKS = 8
"""Blocks of one write at most. The copier reads them from memory in about a millisecond, for which they are lent."""


@dataclass(frozen=True, slots=True)
class TierConfig:
    """`num_slots`: blocks of `block_bytes` that the tier holds, of which one tenant may have `owner_slots` before it
    reuses its own. `idle_ns`: time without use after which blocks are written. `found`: slot, hash and owner of the
    records that are there already, least recently written first. `name`: for metrics."""

    num_slots: int
    block_bytes: int
    owner_slots: int
    idle_ns: int = IDLE_NS
    found: tuple[tuple[int, bytes, bytes], ...] = ()
    name: str = "disk"


@dataclass(slots=True)
class _Write:
    """A write in progress. `holders`: of the blocks that are lent to it, until their bytes are copied. `keeps`: the
    blocks stay in memory as long as others of their age."""

    order: WriteOrder
    holders: list[int]
    keeps: bool


class KVTier:
    """Owns the second pool's index and what is lent to the copier. Single-threaded; it reads no clock.

    `update` gives the orders for the copier, `report` takes its answers. Requests without a salt have no part in it.
    """

    def __init__(self, pool: BlockPool, config: TierConfig, predict_ns: PredictComputing) -> None:
        self._pool = pool
        self._config = config
        self._predict_ns = predict_ns
        self._index = TierIndex(config.num_slots, config.owner_slots)
        self._index.restore(config.found)
        self._leases = Leases(pool)
        self._write_back = WriteBack(pool, config.idle_ns)
        self._counts = TierCounts()
        self._read_speed, self._write_speed = CopySpeed(config.block_bytes), CopySpeed(config.block_bytes)
        self._fetching = Fetching(
            pool, self._index, self._leases, self._read_speed, self._counts, BLOCK_TOKENS, predict_ns
        )
        self._numbers = count(1)
        self._write: _Write | None = None
        self._erasures: deque[int] = deque()
        self._launched = self._completed = 0
        """Steps of the model so far."""
        pool.on_drop = self._write_back.unpublish

    @property
    def held(self) -> Mapping[int, Sequence[int]]:
        """Blocks of the pool that are lent, by holder."""
        return self._leases.held

    @property
    def lent_blocks(self) -> int:
        """Blocks that are back before the disk is touched."""
        return self._leases.to_write

    @property
    def fetching_blocks(self) -> int:
        """Blocks that fetches in progress hold."""
        return sum(map(len, self._leases.held.values())) - self._leases.to_write

    @property
    def is_copying(self) -> bool:
        """Whether the copier owes a report."""
        return self._write is not None or bool(self._fetching)

    @property
    def next_due_ns(self) -> int | None:
        """When `update` has something to do, if nothing happens before."""
        if self._write_back.has_candidates and not self.is_copying and self._leases.spare_blocks:
            return 0
        due = [at for at in (self._write_back.next_due_ns, self._fetching.next_due_ns) if at is not None]
        return min(due, default=None)

    def record_launch(self) -> None:
        """A step was launched. Steps complete in the order of their launch."""
        self._launched += 1

    def record_completion(self) -> None:
        """The oldest step in flight is complete."""
        self._completed += 1

    def record_published(self, request: Request, first: int, end: int) -> None:
        """Blocks number `first` to `end` of the request were published."""
        if request.salt:
            self._write_back.publish(request.salt, request.block_hashes[first:end], first)

    def record_released(self, request: Request, now_ns: int, *, preempted: bool) -> None:
        """Called before the request releases its blocks. `preempted`: it needs them again when it resumes."""
        if not request.salt:
            return
        hashes = request.block_hashes[: request.computed // BLOCK_TOKENS]
        if preempted:
            self._write_back.add_preempted(hashes)
        self._write_back.add_released(hashes, now_ns)

    def forget(self, hashes: Iterable[bytes]) -> None:
        """These blocks must not be reused: drop their records."""
        for block_hash in hashes:
            slot = self._index.drop(block_hash)
            if slot is not None:
                self._erasures.append(slot)

    def forget_tenant(self, salt: bytes) -> None:
        """Drop and erase all records of the tenant with this salt."""
        self.forget(self._index.hashes_of(owner_of(salt)))

    def fetch(self, request: Request, hits: PrefixHits, max_blocks: int, room: int, now_ns: int) -> Fetch | None:
        """Begin to fetch the blocks that follow the request's hits, or find the fetch that reads them already. None:
        the request need not wait.

        `max_blocks`: blocks of its prefix that it can use; `room`: blocks that may be allocated for it now.
        """
        first = len(hits.blocks)
        if not request.salt or first < request.fetch_floor or first >= max_blocks:
            return None
        if first == len(request.block_hashes):
            extend_hashes(request, first + 1)
        fetch = self._fetching.in_progress(request.block_hashes[first])
        if fetch is None:
            hashes = self._stored(request, first, max_blocks)
            wanted = Wanted(hashes, first, hits.blocks, request.rank, request.tenant, request.salt)
            fetch = self._fetching.begin(next(self._numbers), wanted, room, self._launched, now_ns)
        if fetch is not None:
            request.fetch_floor = fetch.end
        return fetch

    def update(self, now_ns: int) -> list[Order]:
        """The orders to hand to the copier now, in this order."""
        orders: list[Order] = list(self._fetching.ready(self._completed))
        self._write_back.mature(now_ns)
        if self._erasures:
            orders.append(EraseOrder(tuple(self._erasures)))
            self._erasures.clear()
        if not self.is_copying and (write := self._next_write()) is not None:
            orders.append(write)
        return orders

    def overdue(self, now_ns: int) -> list[int]:
        """The fetches that requests should wait for no longer."""
        return self._fetching.overdue(now_ns)

    def report(self, report: Report, now_ns: int) -> int | None:
        """Take a report of the copier. Returns the number of the fetch that has ended, if one has."""
        match report:
            case CopiedOut():
                self._end_leases(report.number)
            case WriteEnd():
                self._end_write(report)
            case FetchEnd():
                slot = self._fetching.end(report, self._write_back.publish, now_ns)
                if slot is not None:
                    self._erasures.append(slot)
                return report.number
        return None

    def stats(self, waiting: int) -> TierStats:
        """The metrics. `waiting`: requests that wait for a fetch. Thread-safe."""
        counts, block_bytes = self._counts, self._config.block_bytes
        return TierStats(
            name=self._config.name,
            capacity_bytes=self._config.num_slots * block_bytes,
            used_bytes=len(self._index) * block_bytes,
            waiting=waiting,
            written_bytes_total=counts.written_blocks * block_bytes,
            read_bytes_total=counts.read_blocks * block_bytes,
            hit_blocks_total=counts.read_blocks,
            failed_blocks_total=counts.failed_blocks,
            failed_writes_total=counts.failed_writes,
            evictions_total=self._index.evictions_total,
            saved_ns_total=counts.saved_ns,
            lost_ns_total=counts.lost_ns,
        )

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        self._index.check()
        self._fetching.check()
        self._write_back.check()
        lent = 0 if self._write is None else len(self._write.holders)
        assert len(self.held) == lent + len(self._fetching), "a lease is lost"

    def _stored(self, request: Request, first: int, end: int) -> list[bytes]:
        """The leading hashes of the request's blocks from number `first` on that can be read."""
        stored: list[bytes] = []
        for number in range(first, end):
            if number == len(request.block_hashes):
                extend_hashes(request, number + 1)
            block_hash = request.block_hashes[number]
            if not self._index.is_stored(block_hash) or self._fetching.in_progress(block_hash) is not None:
                break
            stored.append(block_hash)
        return stored

    def _next_write(self) -> WriteOrder | None:
        """The next blocks to write, and lend them. They are all to be kept in memory, or none is."""
        room = min(WRITE_BLOCKS, self._leases.spare_blocks)
        records: dict[bytes, BlockRecord] = {}
        keeps = False
        for block_hash, keep in self._write_back.candidates() if room else ():
            if records and keep != keeps:
                break
            record = None if block_hash in records else self._record(block_hash)
            if record is not None:
                records[block_hash], keeps = record, keep
            if len(records) == room:
                break
        if not records:
            return None
        order = WriteOrder(next(self._numbers), tuple(records.values()))
        self._write = _Write(order, self._leases.lend([record.block for record in order.records]), keeps)
        return order

    def _record(self, block_hash: bytes) -> BlockRecord | None:
        """A slot for a free block that is worth it and has none yet."""
        block, origin = self._pool.cached_block(block_hash), self._write_back.origins.get(block_hash)
        if block is None or origin is None or block_hash in self._index or self._pool.references(block):
            return None
        if self._predict_ns(origin.number * BLOCK_TOKENS, BLOCK_TOKENS) <= self._read_speed.block_ns:
            return None
        slot = self._index.begin_write(block_hash, owner_of(origin.salt))
        return None if slot is None else BlockRecord(block, block_hash, slot, origin.salt)

    def _reported(self, number: int) -> _Write:
        write = self._write
        assert write is not None, "a write is reported, and none is in progress"
        assert write.order.number == number, "a write is reported that is not in progress"
        return write

    def _end_leases(self, number: int) -> None:
        write = self._reported(number)
        for holder in write.holders:
            self._leases.end(holder, reuse_first=not write.keeps)
        write.holders = []

    def _end_write(self, report: WriteEnd) -> None:
        write = self._reported(report.number)
        if write.holders:
            self._end_leases(report.number)
        self._write = None
        for record, written in zip(write.order.records, report.written, strict=True):
            self._index.end_write(record.block_hash, record.slot, ok=written)
        written_blocks = sum(report.written)
        self._write_speed.observe(written_blocks, report.elapsed_ns)
        self._counts.written_blocks += written_blocks
        self._counts.failed_writes += len(report.written) - written_blocks
