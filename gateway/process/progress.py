"""Progress of long operations: bars on a terminal, otherwise a line every quarter."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

Report = Callable[[str, int, int], None]
"""(operation, bytes done, total bytes) -> None."""

_MIB = 2**20


@contextmanager
def progress() -> Iterator[Report]:
    """Write reports to standard error; standard output is for results."""
    with _bars() if sys.stderr.isatty() else _lines() as report:
        yield report


@contextmanager
def _bars() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        yield report


@contextmanager
def _lines() -> Iterator[Report]:
    quarters: dict[str, int] = {}

    def report(what: str, done: int, total: int) -> None:
        quarter = 4 * done // total if total else 4
        if quarter > quarters.get(what, -1):
            quarters[what] = quarter
            typer.echo(f"{what}: {done // _MIB} of {total // _MIB} MiB", err=True)

    yield report
