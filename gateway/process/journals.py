"""The journals of several gateway processes: a file each."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from gateway.errors import OperatorError
from gateway.metering.journal.journal_file import JournalFile


def journal_path_of(path: Path, index: int) -> Path:
    """The journal of the gateway process `index`; `path`: `journal_path`, which is that of process 0."""
    return path if index == 0 else path.with_name(f"{path.stem}-{index}{path.suffix}")


def refuse_left_journals(path: Path, count: int) -> None:
    """Before a start with `count` processes: journals of former processes with a higher index must be empty, or usage
    in them would never be billed.

    Raises:
        OperatorError: one has usage that is not delivered.
    """
    for index, left in sorted(_left(path, count)):
        try:
            with closing(JournalFile(left, read_only=True)) as journal:
                events = journal.last_sequence() - journal.relayed_sequence()
                is_empty = not events and not journal.open_requests()
        except sqlite3.Error as error:
            raise OperatorError(f"{left} cannot be read: {error}") from error
        if not is_empty:
            raise OperatorError(
                f"{left} has usage that is not delivered: start once with gateway_processes = {index + 1}, until "
                "turnpike_usage_backlog_events is 0"
            )


def _left(path: Path, count: int) -> Iterator[tuple[int, Path]]:
    name = re.compile(rf"{re.escape(path.stem)}-(\d+){re.escape(path.suffix)}")
    for each in path.parent.glob(f"{path.stem}-*{path.suffix}"):
        found = name.fullmatch(each.name)
        if found is not None and int(found[1]) >= count:
            yield int(found[1]), each
