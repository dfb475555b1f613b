"""Copies KV blocks between a model's memory and its file on disk, on a thread of its own that no step waits for."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, runtime_checkable

from engine.errors import EngineError
from engine.memory.tiers.orders import CopiedOut, EraseOrder, FetchEnd, FetchOrder, Order, Report, WriteEnd, WriteOrder
from engine.memory.tiers.store import DiskStore, UnreadableRecord
from engine.runtime.thread import lower_priority

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
"""Maximum wait for the copy in progress when the engine closes."""
_LOG_INTERVAL_SECONDS = 60.0
"""The shortest interval between two messages of a disk that fails."""


@runtime_checkable
class BlockMemory(Protocol):
    """KV memory whose blocks can be copied while steps run that use other blocks. Called by the copier's thread."""

    @property
    def kv_block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        ...

    def read_block(self, block: int) -> bytes:
        """The bytes of a block."""
        ...

    def write_block(self, block: int, data: bytes) -> None:
        """Fill a block."""
        ...


class KVCopier:
    """Executes the orders of one model's second pool: fetches first, the others in turn.

    Each write and fetch is reported exactly once, whatever fails, until `close`.
    """

    def __init__(self, model: str, memory: BlockMemory, store: DiskStore, post: Callable[[str, Report], None]) -> None:
        """`post`: delivers a report to the engine thread, with the model's name. `store` is closed with the copier."""
        self._model = model
        self._memory = memory
        self._store = store
        self._post = post
        self._fetches: deque[FetchOrder] = deque()
        self._others: deque[WriteOrder | EraseOrder] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._logged_s = -_LOG_INTERVAL_SECONDS
        self._thread = threading.Thread(target=self._run, name="turnpike-kv-copier", daemon=True)
        self._thread.start()

    def take(self, orders: Sequence[Order]) -> None:
        """Queue orders. Does not block."""
        if not orders:
            return
        with self._wake:
            for order in orders:
                if isinstance(order, FetchOrder):
                    self._fetches.append(order)
                else:
                    self._others.append(order)
            self._wake.notify()

    def close(self) -> None:
        """Stop after the copy in progress and the erasures that were ordered, and close the store. Waits a few seconds
        at most. Idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        lower_priority()
        try:
            while (order := self._next()) is not None:
                self._execute(order)
        finally:
            self._store.close()

    def _next(self) -> Order | None:
        """The next order; None: the copier is closed."""
        with self._wake:
            while not (self._fetches or self._others or self._closing):
                self._wake.wait()
            if self._closing:
                return next((order for order in self._drained() if isinstance(order, EraseOrder)), None)
            return self._fetches.popleft() if self._fetches else self._others.popleft()

    def _drained(self) -> Sequence[Order]:
        """The erasures that are left, of which the first is removed."""
        erasures = [order for order in self._others if isinstance(order, EraseOrder)]
        self._others = deque(erasures[1:])
        return erasures[:1]

    def _execute(self, order: Order) -> None:
        match order:
            case WriteOrder():
                self._write(order)
            case FetchOrder():
                self._fetch(order)
            case EraseOrder():
                for slot in order.slots:
                    try:
                        self._store.erase(slot)
                    except OSError as error:
                        self._warn("erase", error)

    def _write(self, order: WriteOrder) -> None:
        started_ns = time.monotonic_ns()
        written = [False] * len(order.records)
        try:
            blocks = [self._memory.read_block(record.block) for record in order.records]
            self._deliver(CopiedOut(order.number))
            for index, (record, block) in enumerate(zip(order.records, blocks, strict=True)):
                self._store.write(record.slot, record.block_hash, record.salt, block)
                written[index] = True
        except OSError as error:
            self._warn("write", error)
        except Exception:
            logger.exception("KV blocks of %s cannot be written", self._model)
        self._deliver(WriteEnd(order.number, tuple(written), time.monotonic_ns() - started_ns))

    def _fetch(self, order: FetchOrder) -> None:
        started_ns, filled = time.monotonic_ns(), 0
        try:
            for record in order.records:
                block = self._store.read(record.slot, record.block_hash, record.salt)
                self._memory.write_block(record.block, block)
                filled += 1
        except (UnreadableRecord, OSError) as error:
            self._warn("read", error)
        except Exception:
            logger.exception("KV blocks of %s cannot be read", self._model)
        self._deliver(FetchEnd(order.number, filled, time.monotonic_ns() - started_ns))

    def _deliver(self, report: Report) -> None:
        with suppress(EngineError):  # the engine is closed
            self._post(self._model, report)

    def _warn(self, verb: str, error: Exception) -> None:
        if time.monotonic() - self._logged_s >= _LOG_INTERVAL_SECONDS:
            self._logged_s = time.monotonic()
            logger.warning("cannot %s KV blocks of %s on disk: %s", verb, self._model, error)
