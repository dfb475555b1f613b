"""Claims batches for this gateway process, runs them, and sweeps files."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import structlog

from gateway.batches.batch_run import BatchRun, Shared
from gateway.batches.batches import Batches
from gateway.batches.errors import BatchTaken
from gateway.batches.line_run import LineRunner
from gateway.batches.metrics import BatchMetrics
from gateway.batches.records import OPEN, Batch
from gateway.batches.results import Results, left_results, remove_results
from gateway.errors import OperatorError
from gateway.files.store import FileStore
from gateway.files.sweeping import sweep_files

POLL_S = 1.0
"""Interval at which batches of other gateways are looked for."""
SWEEP_EVERY = timedelta(hours=1)
MAX_BATCHES = 16
"""Batches that one process runs at a time. Their lines share its slots."""
RETRY_S = 5.0
"""Pause of a batch that could not be run: its tenant is suspended, a disk is full, or another process has its files."""


_log = structlog.get_logger("turnpike.batches")


def utc_now() -> datetime:
    return datetime.now(UTC)


class BatchRunner:
    """The background task of a gateway process: `start`, then `aclose`. `is_draining`: no further batch is claimed."""

    def __init__(
        self,
        batches: Batches,
        files: FileStore,
        lines: LineRunner,
        metrics: BatchMetrics,
        is_draining: Callable[[], bool],
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._batches = batches
        self._is_draining = is_draining
        self._shared = Shared(
            batches, files, lines, metrics, asyncio.Semaphore(batches.settings.concurrency), uuid4().hex, now
        )
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._paused: dict[str, float] = {}
        """Batches that are left alone, until a time of the event loop."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin on the running event loop."""
        if self._batches.settings.concurrency:
            self._task = asyncio.create_task(self._run())

    async def aclose(self) -> None:
        """End. Running lines are aborted, and run again later. The leases end, for another gateway."""
        tasks = [*self._runs.values(), *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self) -> None:
        swept, trouble = None, False
        while True:
            self._batches.created.clear()
            try:
                if not self._is_draining():
                    await self._claim()
                self._shared.metrics.batches.update(dict.fromkeys(self._shared.metrics.batches, 0))
                self._shared.metrics.batches.update(await self._batches.store.by_status())
                if swept is None or self._shared.now() - swept >= SWEEP_EVERY:
                    await self._sweep()
                    swept = self._shared.now()
            except OperatorError as error:
                if not trouble:
                    _log.warning("batches cannot be looked for", reason=str(error))
                trouble = True
            else:
                trouble = False
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._batches.created.wait()

    async def _claim(self) -> None:
        shared, clock = self._shared, asyncio.get_running_loop().time()
        self._paused = {batch_id: until for batch_id, until in self._paused.items() if until > clock}
        while len(self._runs) < MAX_BATCHES:
            but = [*self._runs, *self._paused]
            lease_s = self._batches.settings.lease_s
            batch = await self._batches.store.claim(shared.owner, shared.now(), lease_s, but)
            if batch is None:
                return
            task = asyncio.create_task(self._run_batch(batch))
            self._runs[batch.id] = task
            task.add_done_callback(partial(self._ended, batch.id))

    def _ended(self, batch_id: str, _: asyncio.Task[None]) -> None:
        self._runs.pop(batch_id, None)
        self._batches.created.set()

    async def _run_batch(self, batch: Batch) -> None:
        results, left = None, True
        try:
            source = self._shared.lines.log.source
            results = await asyncio.to_thread(Results, self._batches.folder, batch.id, source)
            ended = await BatchRun(self._shared, batch, results).run()
            left = ended.status in OPEN
            if not left:
                _log.info("a batch has ended", batch=batch.id, status=ended.status.value, total=ended.counts.total)
        except BatchTaken:
            pass  # the process that had the lease is stopped, or about to end
        except OperatorError as error:
            _log.warning("a batch cannot be run, and is resumed later", batch=batch.id, reason=str(error))
        except Exception as error:
            _log.error("a batch failed", batch=batch.id, exc_info=error)
        finally:
            if left:
                self._paused[batch.id] = asyncio.get_running_loop().time() + RETRY_S
            await asyncio.shield(self._leave(batch, results))

    async def _leave(self, batch: Batch, results: Results | None) -> None:
        if results is not None:
            await results.aclose()
        with suppress(OperatorError):
            await self._batches.store.release(batch.id, self._shared.owner)

    async def _sweep(self) -> None:
        removed = await sweep_files(self._shared.files, self._shared.now())
        left = await asyncio.to_thread(left_results, self._batches.folder)
        for first in range(0, len(left), 500):
            for batch_id in await self._batches.store.ended(left[first : first + 500]):
                await asyncio.to_thread(remove_results, self._batches.folder, batch_id)
                removed += 1
        if removed:
            _log.info("removed files that have expired or that nothing names", files=removed)
