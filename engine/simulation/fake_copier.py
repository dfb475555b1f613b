"""Copies blocks between the pool and a second one in virtual time: late, out of turn, and not always."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from engine.memory import BlockPool
from engine.memory.tiers.orders import (
    CopiedOut,
    EraseOrder,
    FetchEnd,
    FetchOrder,
    Order,
    Report,
    WriteEnd,
    WriteOrder,
)
from engine.scheduling import Scheduler
from engine.simulation.fake_executor import GARBAGE, FakeExecutor
from engine.simulation.traffic import TICK_NS

BLOCK_BYTES = 25_000
"""With the assumed speed of a copier that has copied nothing: 0.1 ms a block, a quarter of computing it."""

_Entries = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Record:
    """A record on the fake disk: `entries` are None where they were lost or corrupted, which its tag shows."""

    block_hash: bytes
    salt: bytes
    entries: _Entries | None


@dataclass(frozen=True, slots=True)
class _Due:
    """A report, and when it is made. `read`: the records of a fetch that were read."""

    at_ns: int
    report: Report
    order: WriteOrder | FetchOrder
    read: tuple[_Record, ...] = ()


class FakeCopier:
    """The bytes that it reads of the pool are those at the time of its report, as late as a lease allows: a lease that
    is broken shows as wrong bytes. A block that it fills holds garbage until its report.

    `note_published` tells it the right bytes of each hash; it compares all that it reads and writes with them.
    """

    def __init__(self, seed: int, scheduler: Scheduler, pool: BlockPool, executor: FakeExecutor) -> None:
        assert scheduler.fetches is not None, "there is no second pool"
        self._rng = Random(f"copier of {seed}")
        self._fetches = scheduler.fetches
        self._pool = pool
        self._executor = executor
        self._disk: dict[int, _Record] = {}
        self._right: dict[bytes, _Entries] = {}
        self._due: list[_Due] = []
        self._longest_ticks = self._rng.choice((0, 2, 30, 3000))
        self._failing = self._rng.choice((0.0, 0.0, 0.1, 0.5))
        self._corrupting = self._rng.choice((0.0, 0.0, 0.1))
        self.fetched_blocks = self.bad_records = 0

    @property
    def ends_ns(self) -> list[int]:
        """When reports are made, and when the second pool has something to do."""
        due_ns = self._fetches.next_due_ns
        return [due.at_ns for due in self._due] + ([] if due_ns is None else [due_ns])

    @property
    def is_copying(self) -> bool:
        """Whether a report is due."""
        return bool(self._due)

    def note_published(self, block: int, block_hash: bytes) -> None:
        """A block is published: its bytes are final, and the same each time."""
        entries = self._executor.read_block(block)
        assert GARBAGE not in entries, "a block is published before it is filled"
        assert self._right.setdefault(block_hash, entries) == entries, (
            "a hash is published with other bytes than before"
        )

    def update(self, now_ns: int) -> bool:
        """Make the reports that are due, and take orders. Returns whether there were reports."""
        ready = sorted((due for due in self._due if due.at_ns <= now_ns), key=lambda due: due.at_ns)
        for due in ready:
            self._due.remove(due)
            self._report(due, now_ns)
        self.take(self._fetches.update(now_ns), now_ns)
        return bool(ready)

    def take(self, orders: Sequence[Order], now_ns: int) -> None:
        """Begin to copy."""
        for order in orders:
            match order:
                case WriteOrder():
                    copied_ns = self._later(now_ns)
                    self._due.append(_Due(copied_ns, CopiedOut(order.number), order))
                case FetchOrder():
                    for record in order.records:
                        self._executor.write_block(record.block, (GARBAGE,) * len(self._executor.read_block(0)))
                    read = self._read(order)
                    elapsed_ns = self._rng.choice((1, 10, 100, 1000)) * TICK_NS // 1000
                    report = FetchEnd(order.number, len(read), elapsed_ns)
                    self._due.append(_Due(self._later(now_ns), report, order, read))
                case EraseOrder():
                    for slot in order.slots:
                        self._disk.pop(slot, None)

    def _later(self, now_ns: int) -> int:
        return now_ns + self._rng.randint(0, self._longest_ticks) * TICK_NS

    def _report(self, due: _Due, now_ns: int) -> None:
        if isinstance(due.report, CopiedOut):
            assert isinstance(due.order, WriteOrder)
            self._copy_out(due.order, now_ns)
        elif isinstance(due.report, FetchEnd):
            for record, stored in zip(due.order.records, due.read, strict=False):
                assert stored.entries is not None, "a bad record is fetched"
                assert self._disk.get(record.slot) in (stored, None), "a slot is overwritten while it is read"
                assert self._executor.read_block(record.block)[0] == GARBAGE, "a block is used before it is filled"
                self._executor.write_block(record.block, stored.entries)
            self.fetched_blocks += due.report.blocks
        self._fetches.report(due.report, now_ns)

    def _copy_out(self, order: WriteOrder, now_ns: int) -> None:
        """Read the blocks of a write, and put them on the disk; the report of the end comes later."""
        written = []
        for record in order.records:
            entries = self._executor.read_block(record.block)
            assert self._pool.hash_of(record.block) == record.block_hash, "a lent block is evicted"
            assert entries == self._right[record.block_hash], "a lent block is overwritten"
            written.append(self._rng.random() >= self._failing)
            bad = not written[-1] or self._rng.random() < self._corrupting
            self.bad_records += bad
            self._disk[record.slot] = _Record(record.block_hash, record.salt, None if bad else entries)
        elapsed_ns = self._rng.choice((1, 10, 100)) * TICK_NS // 1000
        self._due.append(_Due(self._later(now_ns), WriteEnd(order.number, tuple(written), elapsed_ns), order))

    def _read(self, order: FetchOrder) -> tuple[_Record, ...]:
        """Leading records that can be read: that one is not another hash's is part of what its tag shows."""
        read = []
        for record in order.records:
            stored = self._disk.get(record.slot)
            if stored is None or stored.entries is None or stored.block_hash != record.block_hash:
                break
            assert stored.salt == record.salt, "a record of one tenant is read for another"
            read.append(stored)
        return tuple(read)

    def check_end(self) -> None:
        """Assert that nothing is left to copy."""
        assert not self._due, "copies are left"
        assert not self._fetches.is_copying, "a copy is awaited that is not in progress"
        assert not self._fetches.waiting, "requests wait for blocks"
