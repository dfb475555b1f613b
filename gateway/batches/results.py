"""The results of a batch on the disk: `FOLDER/BATCH/results.jsonl`, a record for each line that has a final answer.

    {"line", "is_error", "output", "usage", "event", "source"}   the answer, and the usage event that bills it
    {"billed": [line, ...]}                                      events that the journal `source` has recorded

Records are synced when `add` returns. What a crash leaves of the last record is cut off. `FOLDER/BATCH/lock` is locked
while a process has the results open, so that none that lost its lease can write.
"""

import asyncio
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway.batches.errors import BatchTaken
from gateway.batches.records import NO_USAGE, BatchUsage, Counts
from gateway.common.durable_files import sync, write_all
from gateway.files.errors import FileStoreFull, FileStoreUnavailable

_RESULTS, _LOCK = "results.jsonl", "lock"


@dataclass(frozen=True, slots=True)
class Result:
    """The final answer of a line. `output`: the object in the output or error file. `event`: the usage event as JSON;
    None: nothing is billed."""

    line: int
    is_error: bool
    output: Mapping[str, Any]
    usage: BatchUsage = NO_USAGE
    event: str | None = None

    def to_json(self, source: str) -> bytes:
        usage = [self.usage.input_tokens, self.usage.cached_tokens, self.usage.output_tokens]
        stated = {
            "line": self.line,
            "is_error": self.is_error,
            "output": self.output,
            "usage": [*usage, self.usage.reasoning_tokens],
            "event": self.event,
            "source": source,
        }
        return orjson.dumps(stated, option=orjson.OPT_APPEND_NEWLINE)


class Results:
    """The results of one batch, owned by this process until `close`. `source`: id of the journal that bills.

    The constructor blocks, and raises `BatchTaken` if another process has them open, `FileStoreUnavailable` if the disk
    fails.
    """

    def __init__(self, folder: Path, batch_id: str, source: str) -> None:
        self._folder = folder / batch_id
        self._source = source
        self.done: set[int] = set()
        """Lines that have a result."""
        self.completed = self.failed = 0
        self.usage = NO_USAGE
        self.unbilled: dict[int, str] = {}
        """Usage events without a mark, by line."""
        self._pending: list[tuple[Result, asyncio.Future[None]]] = []
        self._marks: list[int] = []
        self._writer: asyncio.Task[None] | None = None
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(self._folder / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileStoreUnavailable(f"the results of {batch_id} cannot be opened: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._folder / _RESULTS, flags, 0o600)
            self._end = self._recover()
            sync(self._folder)
        except BlockingIOError:
            os.close(self._lock)
            raise BatchTaken(f"another process runs {batch_id}") from None
        except OSError as error:
            os.close(self._lock)
            raise FileStoreUnavailable(f"the results of {batch_id} cannot be read: {error.strerror}") from error

    def counts(self, total: int) -> Counts:
        return Counts(total, self.completed, self.failed)

    async def add(self, result: Result) -> None:
        """Write a result; returns when it is on the disk. Results of concurrent calls share a sync.

        Raises:
            FileStoreFull, FileStoreUnavailable: it is not on the disk.
        """
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pending.append((result, written))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_pending())
        await asyncio.shield(written)

    def mark_billed(self, line: int) -> None:
        """The line's event is in the journal. Written with the next result, or by `aclose`: without a mark the journal
        is asked."""
        self.unbilled.pop(line, None)
        self._marks.append(line)

    def outputs(self, *, errors: bool) -> Iterator[bytes]:
        """The objects of the output file or of the error file, as JSON lines. Blocks."""
        for record in self._records():
            if "line" in record and record["is_error"] == errors:
                yield orjson.dumps(record["output"], option=orjson.OPT_APPEND_NEWLINE)

    async def aclose(self) -> None:
        """Write what is pending, and unlock. Idempotent."""
        if self._descriptor < 0:
            return
        while self._writer is not None and not self._writer.done():
            await asyncio.wait([self._writer])
        await asyncio.to_thread(self._close)

    async def remove(self) -> None:
        """Close, and remove the results of a batch that has ended."""
        await self.aclose()
        await asyncio.to_thread(shutil.rmtree, self._folder, True)

    async def _write_pending(self) -> None:
        while self._pending:
            pending, self._pending = self._pending, []
            marks, self._marks = self._marks, []
            try:
                await asyncio.to_thread(self._append, [result for result, _ in pending], marks)
            except (FileStoreFull, FileStoreUnavailable) as error:
                self._marks = marks + self._marks
                for _, written in pending:
                    if not written.done():
                        written.set_exception(error)
                        written.exception()  # its caller may have been cancelled
                continue
            for result, written in pending:
                self._note(result.line, result.is_error, result.usage, result.event)
                if not written.done():
                    written.set_result(None)

    def _append(self, results: Sequence[Result], marks: Sequence[int]) -> None:
        content = b"".join(result.to_json(self._source) for result in results)
        if marks:
            content = orjson.dumps({"billed": marks}, option=orjson.OPT_APPEND_NEWLINE) + content
        try:
            write_all(self._descriptor, content, self._end)
            os.fdatasync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._end)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise FileStoreFull("the disk of the results is full") from error
            raise FileStoreUnavailable(f"results cannot be written: {error.strerror}") from error
        self._end += len(content)

    def _recover(self) -> int:
        """Read the records, and cut off a torn one. Returns the end of the file."""
        for record in self._records():
            for line in record.get("billed", ()):
                self.unbilled.pop(line, None)
            if "line" in record:
                self._note(record["line"], record["is_error"], BatchUsage(*record["usage"]), record["event"])
        return os.fstat(self._descriptor).st_size

    def _records(self) -> Iterator[Mapping[str, Any]]:
        """All whole records. The rest is cut off: its write was not finished."""
        with open(self._folder / _RESULTS, "rb") as file:
            end = 0
            for text in file:
                try:
                    record = orjson.loads(text) if text.endswith(b"\n") else None
                except orjson.JSONDecodeError:
                    record = None
                if record is None:
                    os.ftruncate(self._descriptor, end)
                    return
                end += len(text)
                yield record

    def _note(self, line: int, is_error: bool, usage: BatchUsage, event: str | None) -> None:
        self.done.add(line)
        self.completed += not is_error
        self.failed += is_error
        self.usage += usage
        if event is not None:
            self.unbilled[line] = event

    def _close(self) -> None:
        try:
            if self._marks:
                self._append((), self._marks)
                self._marks = []
        except (FileStoreFull, FileStoreUnavailable):
            pass  # the journal is asked
        finally:
            os.close(self._descriptor)
            os.close(self._lock)
            self._descriptor = -1


def left_results(folder: Path) -> list[str]:
    """Ids of batches that have results. Blocks."""
    try:
        return [entry.name for entry in folder.iterdir() if entry.is_dir()]
    except FileNotFoundError:
        return []


def remove_results(folder: Path, batch_id: str) -> None:
    """Remove the results of a batch that has ended. Blocks."""
    shutil.rmtree(folder / batch_id, ignore_errors=True)
