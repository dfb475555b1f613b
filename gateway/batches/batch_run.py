"""One batch, from the state in which it was claimed to its end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

import structlog

from gateway.batches.batches import Batches
from gateway.batches.errors import BatchConflict
from gateway.batches.finishing import publish_files
from gateway.batches.input_lines import Checked, InputLine, check_input, read_input
from gateway.batches.line_call import LineAborted
from gateway.batches.line_log import events_of
from gateway.batches.line_run import LineRunner, not_run
from gateway.batches.metrics import BatchMetrics
from gateway.batches.records import OPEN, Batch, LineError, Status
from gateway.batches.results import Results
from gateway.errors import OperatorError
from gateway.files.errors import UnknownFile
from gateway.files.records import StoredFile
from gateway.files.store import FileStore
from gateway.tenancy.records import Principal

CONTROL_S = 1.0
"""Interval at which a running batch looks whether it is cancelled, and writes its counts."""
CANCEL_GRACE_S = 60.0
"""Time that running lines get after a cancellation or the end of the window, before they are aborted."""
_READ_LINES = 64
EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "This request was not executed because the batch was cancelled.")

_log = structlog.get_logger("turnpike.batches")


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts that all batches of a gateway process share. `slots`: calls of lines that run at a time. `now`: UTC."""

    batches: Batches
    files: FileStore
    lines: LineRunner
    metrics: BatchMetrics
    slots: asyncio.Semaphore
    owner: str
    now: Callable[[], datetime]


@dataclass(slots=True)
class _Control:
    """Whether further lines start (`stopped`), and whether running ones are aborted (`aborted`). `failure`: of a line
    whose result or bill could not be written."""

    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: asyncio.Event = field(default_factory=asyncio.Event)
    failure: OperatorError | None = None

    def abort(self) -> None:
        self.stopped.set()
        self.aborted.set()

    def fail(self, error: OperatorError) -> None:
        self.failure = self.failure or error
        self.abort()


class BatchRun:
    """Runs a claimed batch. Its results are open, and its lease is renewed, until `run` returns."""

    def __init__(self, shared: Shared, batch: Batch, results: Results) -> None:
        self._shared = shared
        self._store = shared.batches.store
        self._batch = batch
        self._results = results
        self._control = _Control()
        self._caller: Principal | None = None
        self._has_input = True
        self._running: set[asyncio.Task[None]] = set()

    async def run(self) -> Batch:
        """Returns the batch at its end, or as it is when this process must leave it: its tenant is suspended, or
        another process has the lease.

        Raises:
            OperatorError: a store or the disk failed; it is resumed later.
        """
        await self._bill_rest()
        watch = asyncio.create_task(self._watch())
        try:
            if self._batch.status is Status.VALIDATING:
                await self._validate()
            if self._batch.status is Status.IN_PROGRESS:
                await self._run_lines()
            if self._batch.status is Status.IN_PROGRESS and self._is_complete:
                await self._enter(Status.FINALIZING)
        except BatchConflict:
            self._batch = await self._store.find(self._batch.id)  # it was cancelled
            if self._batch.status is not Status.CANCELLING:
                raise
        finally:
            self._control.abort()
            if self._running:
                await asyncio.wait(self._running)
            watch.cancel()
            await asyncio.wait([watch])
        if self._control.failure is not None:
            raise self._control.failure
        if self._batch.status in (Status.FINALIZING, Status.CANCELLING):
            await self._finish()
        if self._batch.status not in OPEN:
            await self._results.remove()
        return self._batch

    async def _bill_rest(self) -> None:
        """Record the events of results without a mark that no journal has: an ended process wrote their answers."""
        events = events_of(self._results.unbilled)
        log = self._shared.lines.log
        recorded = await log.billed([event.event_id for event in events.values()])
        for line, event in events.items():
            if event.event_id not in recorded:
                await log.bill(event)
            self._results.mark_billed(line)

    @property
    def _is_complete(self) -> bool:
        """Whether all lines have results, or the others cannot have any: the window is over, or the input file."""
        expired = self._shared.now() >= self._batch.expires_at or not self._has_input
        return len(self._results.done) >= self._batch.counts.total or expired

    async def _enter(self, status: Status, files: Sequence[StoredFile] = (), **values: Any) -> None:
        self._batch = await self._store.enter(self._batch, status, self._shared.now(), files, **values)

    async def _validate(self) -> None:
        settings = self._shared.batches.settings
        try:
            file = await self._shared.files.find(self._batch.tenant_id, self._batch.input_file_id, self._shared.now())
            content = await asyncio.to_thread(self._shared.files.contents.open, file.tenant_id, file.id)
            with content:
                limits = (settings.max_lines, self._shared.batches.max_line_bytes)
                checked = await asyncio.to_thread(check_input, content, self._batch.endpoint, *limits)
        except UnknownFile:
            checked = Checked(
                errors=(LineError("invalid_file", "The input file does not exist.", param="input_file_id"),)
            )
        if checked.errors:
            self._batch = await self._store.fail(self._batch, checked.errors, self._shared.now())
        else:
            await self._enter(Status.IN_PROGRESS, total=checked.total, model=checked.model)

    async def _run_lines(self) -> None:
        """Run the lines that have no result, until all have one or the control stops them."""
        self._caller = await self._find_caller()
        # The shared slots are of calls: lines that pause leave them to other batches.
        started = asyncio.Semaphore(self._shared.batches.settings.concurrency)
        async with aclosing(self._lines()) as lines:
            async for line in lines:
                await started.acquire()
                if self._control.stopped.is_set() or self._caller is None:
                    break
                task = asyncio.create_task(self._run_line(line, self._caller))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                task.add_done_callback(lambda _: started.release())
        if self._running:
            await asyncio.wait(self._running)
        self._batch = await self._store.find(self._batch.id)

    async def _lines(self) -> AsyncGenerator[InputLine]:
        """Lines without a result."""
        done, batch = self._results.done, self._batch
        try:
            content = await asyncio.to_thread(self._shared.files.contents.open, batch.tenant_id, batch.input_file_id)
        except UnknownFile:
            _log.warning("the input file of a batch has expired before it", batch=batch.id)
            self._has_input = False
            return
        with content:
            lines = read_input(content)
            while some := await asyncio.to_thread(lambda: list(islice(lines, _READ_LINES))):
                for line in some:
                    if line.number not in done:
                        yield line

    async def _run_line(self, line: InputLine, caller: Principal) -> None:
        """Run a line, write its answer, and bill it. Never cancelled: `aborted` ends it."""
        metrics, lines, batch = self._shared.metrics, self._shared.lines, self._batch
        with metrics.running():
            try:
                result = await lines.run(batch, line, caller, self._control.aborted, self._shared.slots)
                await self._results.add(result)
                metrics.record(result.is_error)
                for event in events_of({} if result.event is None else {line.number: result.event}).values():
                    await lines.log.bill(event)
                    self._results.mark_billed(line.number)
            except LineAborted:
                return
            except OperatorError as error:
                self._control.fail(error)
            except Exception as error:
                _log.error("a line failed", batch=batch.id, line=line.number, exc_info=error)
                self._control.fail(OperatorError("a line of the batch failed unexpectedly"))

    async def _watch(self) -> None:
        """Renew the lease, write the counts, and stop lines for what ends them."""
        lease_s, stopped_at = self._shared.batches.settings.lease_s, None
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(CONTROL_S, lease_s / 4))
            try:
                reason = await self._reason_to_stop(lease_s)
            except OperatorError as error:
                _log.warning("a batch cannot be looked after", batch=self._batch.id, reason=str(error))
                continue
            if reason == "abort":
                self._control.abort()
            elif reason == "stop":
                self._control.stopped.set()
                stopped_at = loop.time() if stopped_at is None else stopped_at
                if loop.time() - stopped_at >= CANCEL_GRACE_S:
                    self._control.abort()

    async def _reason_to_stop(self, lease_s: float) -> str | None:
        """`abort`: at once; `stop`: running lines may end."""
        now, results, batch = self._shared.now(), self._results, self._batch
        current = await self._store.renew(batch.id, self._shared.owner, now, lease_s)
        if current is None:
            return "abort"
        await self._store.count(batch.id, results.counts(current.counts.total), results.usage)
        if current.status is Status.CANCELLING or now >= batch.expires_at:
            return "stop"
        if self._caller is not None:
            self._caller = await self._find_caller()
            return "abort" if self._caller is None else None
        return None

    async def _find_caller(self) -> Principal | None:
        """The principal of the batch's key; None: its tenant is suspended. A batch whose key is revoked or has expired
        is cancelled.

        Raises:
            BatchConflict: it has been cancelled.
        """
        keys = await self._shared.batches.keys.active_keys([self._batch.key_id])
        key = keys.get(self._batch.key_id)
        now = self._shared.now()
        if key is None or (key.expires_at is not None and key.expires_at <= now):
            if self._batch.status is Status.IN_PROGRESS:
                _log.warning("a batch is cancelled: its key is no longer valid", batch=self._batch.id)
                self._batch = await self._store.cancel(self._batch.id, None, now)
            return None
        return None if key.is_suspended else key.principal

    async def _finish(self) -> None:
        """Give the lines that never ran their errors, publish the files, and end the batch."""
        batch, results, now = self._batch, self._results, self._shared.now()
        is_cancelled = batch.status is Status.CANCELLING
        has_left = len(results.done) < batch.counts.total
        if has_left:
            await self._fail_left(*(CANCELLED if is_cancelled else EXPIRED))
        files = await publish_files(batch, results, self._shared.files.contents, now)
        ids = {file.id for file in files}
        status = Status.CANCELLED if is_cancelled else Status.EXPIRED if has_left else Status.COMPLETED
        await self._store.count(batch.id, results.counts(batch.counts.total), results.usage)
        named = {f"{kind}_file_id": batch.file_id(kind) for kind in ("output", "error") if batch.file_id(kind) in ids}
        await self._enter(status, files=files, **named)

    async def _fail_left(self, code: str, message: str) -> None:
        some: list[Awaitable[None]] = []
        async for line in self._lines():
            some.append(self._results.add(not_run(self._batch, line, code, message)))
            if len(some) >= _READ_LINES:
                await asyncio.gather(*some)
                some.clear()
        await asyncio.gather(*some)
