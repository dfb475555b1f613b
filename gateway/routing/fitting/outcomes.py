"""Results of a pair of models on each question: the input of a fit, as a file of JSON lines.

The file refers to its questions by key, so a fit can be repeated from both files without the models.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.errors import OperatorError
from gateway.routing.fitting.evaluate import ModelAnswer
from gateway.routing.fitting.fit import Sample
from gateway.routing.fitting.pareto import Graded
from gateway.routing.fitting.questions import CheckedQuestion


class UnusableOutcomes(OperatorError):
    """A file of outcomes cannot be read, or lacks a question."""


@dataclass(frozen=True, slots=True)
class PairOutcome:
    """The pair's result on the question `key`. `small`, `large`: whether that model was right. `tokens`: prompt and
    answer tokens of the large model."""

    key: str
    small: bool
    large: bool
    tokens: int


def grade(
    questions: Sequence[CheckedQuestion], small: Mapping[str, ModelAnswer], large: Mapping[str, ModelAnswer]
) -> list[PairOutcome]:
    """Grade both models' answers, which are given by the questions' keys."""
    return [
        PairOutcome(
            question.key,
            question.check.passes(small[question.key].text),
            question.check.passes(large[question.key].text),
            large[question.key].tokens,
        )
        for question in questions
    ]


def write_outcomes(path: Path, outcomes: Sequence[PairOutcome]) -> None:
    """Write outcomes as JSON lines."""
    path.write_text("".join(f"{json.dumps(asdict(outcome))}\n" for outcome in outcomes), encoding="utf-8")


def read_outcomes(path: Path) -> list[PairOutcome]:
    """Read what `write_outcomes` wrote. Raises UnusableOutcomes."""
    try:
        return [PairOutcome(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise UnusableOutcomes(f"{path}: cannot be read as outcomes ({type(error).__name__})") from None


def samples(questions: Sequence[CheckedQuestion], outcomes: Sequence[PairOutcome]) -> list[Sample]:
    """Training samples of the questions. The cost of a sample is its tokens.

    Raises:
        UnusableOutcomes: a question has no outcome.
    """
    by_key = {outcome.key: outcome for outcome in outcomes}
    if lacking := sum(question.key not in by_key for question in questions):
        raise UnusableOutcomes(f"{lacking} of {len(questions)} questions have no outcome")
    found = [(question, by_key[question.key]) for question in questions]
    return [
        Sample(question.question, Graded(outcome.small, outcome.large, float(outcome.tokens)), question.family)
        for question, outcome in found
    ]
