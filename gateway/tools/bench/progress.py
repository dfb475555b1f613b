"""A progress bar on a terminal, on standard error; standard output is for results."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from gateway.tools.bench.load import Load
from gateway.tools.bench.recorder import Recorder
from gateway.tools.bench.run import Watch


@contextmanager
def bars(seconds: float) -> Iterator[Watch]:
    """`seconds`: duration of each load."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        tasks: dict[Load, TaskID] = {}

        def watch(load: Load, elapsed_s: float, record: Recorder) -> None:
            if load not in tasks:
                tasks[load] = progress.add_task(str(load), total=seconds, state="")
            finished = sum(each.finished for each in record.outcomes)
            state = f"{finished} finished, {len(record.outcomes) - finished} not, {record.under_way} under way"
            progress.update(tasks[load], completed=min(elapsed_s, seconds), state=state)

        yield watch
