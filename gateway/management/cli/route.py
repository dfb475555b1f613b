"""turnpike route: fitting the complexity score to a pair of models, and asking it."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import OperatorError
from gateway.extras import require
from gateway.management.cli.options import DataDir, settings_from
from gateway.management.cli.output import print_json
from gateway.process.progress import Report, progress

if TYPE_CHECKING:
    from engine.engine import Engine
    from gateway.config.settings import Settings

_MODEL = "NAME|PATH"


def fit(
    small: Annotated[str, typer.Option("--small", metavar=_MODEL, help="The model for easy questions.")],
    large: Annotated[str, typer.Option("--large", metavar=_MODEL, help="The model for the other questions.")],
    questions: Annotated[
        Path, typer.Option("--questions", help="JSON lines of questions with checkable answers.", dir_okay=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Output file of the weights, for the setting route_weights.")],
    answers: Annotated[
        Path | None,
        typer.Option(
            "--answers",
            help="File of the models' answers; an interrupted fit resumes from it. [default: OUT.answers.jsonl]",
        ),
    ] = None,
    outcomes: Annotated[
        Path | None, typer.Option("--outcomes", help="Output file of correct and wrong answers by model.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Fit the complexity score to two models: ask both every question, and learn which ones only the large one answers.

    Prints how good the score is on questions that the fit did not see.
    """
    require("distill", "turnpike route fit")
    settings = settings_from(data_dir=data_dir)
    paths = [_checkpoint(name, settings) for name in (small, large)]
    from gateway.routing.fitting.evaluate import AnswerBook, evaluate
    from gateway.routing.fitting.fit import fit as fit_score
    from gateway.routing.fitting.fit import judge
    from gateway.routing.fitting.outcomes import grade, samples, write_outcomes
    from gateway.routing.fitting.questions import read_questions
    from gateway.routing.fitting.report import describe

    asked = read_questions(questions)
    book = AnswerBook(answers or out.with_name(f"{out.name}.answers.jsonl"))
    with progress() as report:
        of_small, of_large = (
            evaluate(path, asked, book, lambda path: _load(path, settings, report), _counting(path)) for path in paths
        )
    marked = grade(asked, of_small, of_large)
    drawn = samples(asked, marked)
    fitted = fit_score(drawn)
    fitted.score.save(out)
    if outcomes is not None:
        write_outcomes(outcomes, marked)
    typer.echo(describe(fitted, judge(fitted.score, drawn), "tokens"))


def score(
    text: Annotated[str, typer.Argument(help="A question, as a user would ask it.")],
    weights: Annotated[
        Path | None, typer.Option("--weights", help="File of weights. [default: the setting route_weights]")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Print each model's probability of a correct answer to a question, and the model that would serve it."""
    from gateway.routing.question import Question
    from gateway.routing.score import ComplexityScore

    fitted = ComplexityScore.load(weights or settings_from(data_dir=data_dir).route_weights)
    expected = fitted.expect(Question(text=text))
    print_json(
        {
            "score": round(expected.score, 4),
            "small": round(expected.small, 4),
            "large": round(expected.large, 4),
            "served_by": {
                name: "small" if expected.score < threshold else "large"
                for name, threshold in fitted.thresholds.items()
            },
        }
    )


def _checkpoint(named: str, settings: "Settings") -> Path:
    from gateway.process.catalog import find_model

    with progress() as report:
        return find_model(named, settings.models, settings.models_dir, report)


def _load(path: Path, settings: "Settings", report: Report) -> "Engine":
    """The engine with this model alone.

    Raises:
        OperatorError: the model cannot be served or does not fit, or the device is not there.
    """
    from engine.config import EngineConfig
    from engine.engine import Engine
    from engine.memory.kv_memory import InsufficientMemory
    from engine.models.config import UnsupportedCheckpoint
    from kernels.dispatch import DeviceUnavailable

    config = EngineConfig(
        device=settings.device,
        dtype=settings.dtype,
        kv_dtype=settings.kv_dtype,
        quantize=settings.quantize,
        kv_cache_bytes=settings.kv_cache_bytes,
        threads=settings.threads,
        weight_cache=settings.models_dir / "expanded",
    )
    try:
        return Engine.load({path.stem: path}, config, lambda name, done, total: report(f"loading {name}", done, total))
    except (UnsupportedCheckpoint, InsufficientMemory, DeviceUnavailable) as error:
        raise OperatorError(str(error)) from error


def _counting(path: Path) -> Callable[[int, int], None]:
    """A line on standard error for every tenth of the questions."""

    def count(done: int, total: int) -> None:
        if done * 10 // total > (done - 1) * 10 // total:
            typer.echo(f"{path.stem}: {done} of {total} questions", err=True)

    return count
