"""The disk under the journal: commits that take time, fail, or fail on their sync with all of it written."""

import shutil
import sqlite3
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from gateway.metering.journal.journal_file import JournalFile
from tests.whole import threads

_Usage = namedtuple("_Usage", "total used free")


class Disk:
    """One machine's. `fails`: no commit succeeds; `sync_fails`: they fail on their sync, and a crash before the
    next one that succeeds finds them whole in the log: `ghosts`. `full`: little space is left. None of it where a
    process `starts`: one that cannot is started again until it can."""

    def __init__(self, random: Random) -> None:
        self.fails = False
        self.sync_fails = False
        self.full = False
        self.late_s = 0.0
        self.starts = 0
        self.ghosts: dict[sqlite3.Connection, tuple[Path, bytes]] = {}
        self._random = random

    def after_crash(self, path: Path) -> bytes:
        """A journal's content after a crash at this moment."""
        for ghost_of, ghost in self.ghosts.values():
            if ghost_of == path:
                return ghost
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            return connection.serialize()
        finally:
            connection.close()

    @contextmanager
    def well(self) -> Iterator[None]:
        """For the time of the block a process starts."""
        self.starts += 1
        try:
            yield
        finally:
            self.starts -= 1

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Under every journal that is opened within the block."""
        commit, disk_usage = JournalFile.commit, shutil.disk_usage

        def commit_late(file: JournalFile) -> None:
            if threads.scheduler().on_thread:
                threads.scheduler().sleep(self.late_s + self._random.uniform(1e-4, 4e-3))
            if self.fails and not self.starts:
                raise sqlite3.OperationalError("disk I/O error")
            if self.sync_fails and not self.starts:
                self.ghosts[file._connection] = (_path_of(file), file._connection.serialize())
                raise sqlite3.OperationalError("disk I/O error on sync")
            commit(file)
            self.ghosts.pop(file._connection, None)

        def usage(path: Any) -> Any:
            return _Usage(2**40, 2**40, 2**10) if self.full else _Usage(2**40, 0, 2**40)

        JournalFile.commit, shutil.disk_usage = commit_late, usage  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            JournalFile.commit, shutil.disk_usage = commit, disk_usage  # type: ignore[method-assign]


def _path_of(file: JournalFile) -> Path:
    return Path(file._connection.execute("PRAGMA database_list").fetchone()[2])
