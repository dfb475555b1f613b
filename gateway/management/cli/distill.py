"""turnpike distill"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import OperatorError
from gateway.extras import require
from gateway.management.cli.options import DataDir, settings_from
from gateway.process.progress import progress

Report = Callable[[str, float, float, str], None]

_LINES_OF_A_STAGE = 20


def distill(
    target: Annotated[str, typer.Option("--target", metavar="NAME|PATH", help="The teacher model.")],
    prompts: Annotated[
        Path, typer.Option("--prompts", help='JSON lines of {"prompt": text} or {"messages": [...]}.', dir_okay=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Output folder of the small model.", file_okay=False)],
    layers: Annotated[
        str,
        typer.Option("--layers", metavar="N|I,J,...", help="Number of the teacher's layers to keep, or their indices."),
    ] = "6",
    minutes: Annotated[float, typer.Option("--minutes", min=0.0, help="Training time in minutes.")] = 60.0,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Number of training steps; the same seed gives the same model.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0)] = 0,
    data_dir: DataDir = None,
) -> None:
    """Distill a small model with a large one's tokenizer, for easy requests and for drafting.

    The large model answers the prompts; a few of its layers are then trained to reproduce its answers. An interrupted
    run resumes from the folder OUT.work.
    """
    require("distill", "turnpike distill")
    settings = settings_from(data_dir=data_dir)
    if not prompts.is_file():
        raise OperatorError(f"--prompts: there is no file {prompts}")
    from gateway.process.catalog import find_model

    with progress() as report:
        teacher = find_model(target, settings.models, settings.models_dir, report)
    from engine.checkpoints.checkpoint import open_checkpoint
    from engine.distillation import (
        Distillation,
        DistillationError,
        PromptError,
        chosen_layers,
    )
    from engine.distillation import distill as run
    from engine.memory.kv_memory import InsufficientMemory
    from engine.models.config import UnsupportedCheckpoint
    from engine.text import ChatTemplateError

    try:
        task = Distillation(
            teacher=teacher,
            prompts=prompts,
            layers=chosen_layers(layers, of=open_checkpoint(teacher).config.num_layers),
            output=out,
            work=out.with_name(f"{out.name}.work"),
            minutes=minutes,
            steps=steps,
            seed=seed,
        )
        with _stages() as tell:
            result = run(task, tell)
    except (DistillationError, PromptError, UnsupportedCheckpoint, InsufficientMemory, ChatTemplateError) as error:
        raise OperatorError(str(error)) from error
    typer.echo(
        f"{out}: {result.agreement.top1:.1%} top-1 agreement, {result.agreement.overlap:.1%} overlap over "
        f"{result.agreement.positions} held-out tokens; {result.steps} steps, {result.tokens} tokens, "
        f"{result.minutes:.0f} minutes"
    )


@contextmanager
def _stages() -> Iterator[Report]:
    """Bars on a terminal, lines elsewhere; both on standard error."""
    with _bars() if sys.stderr.isatty() else _lines() as report:
        yield report


@contextmanager
def _bars() -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def report(stage: str, done: float, total: float, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, note=note)
            bars.update(tasks[stage], completed=done, total=total, note=note)

        yield report


@contextmanager
def _lines() -> Iterator[Report]:
    """A line for every twentieth of a stage, and for every new note."""
    said: dict[str, tuple[int, str]] = {}

    def report(stage: str, done: float, total: float, note: str) -> None:
        part = int(_LINES_OF_A_STAGE * done / total) if total else _LINES_OF_A_STAGE
        if said.get(stage) != (part, note):
            said[stage] = part, note
            typer.echo(f"{stage}: {part * 100 // _LINES_OF_A_STAGE} %{', ' if note else ''}{note}", err=True)

    yield report
