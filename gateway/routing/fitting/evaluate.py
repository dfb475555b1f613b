"""Asks a model every question and keeps what it answers, and at what cost in tokens.

Greedy, many at once, a line of JSON for each answer as soon as it is there: an exam that was stopped goes on where it
was. A model is known by the files that it is made of, so another model's answers are never taken for its own. Whether
an answer is right is asked when it is read.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.engine import Engine
from engine.errors import EngineError, UnservableRequest
from engine.request import SamplingParams
from engine.text import ChatTemplateError
from gateway.errors import OperatorError
from gateway.routing.fitting.questions import CheckedQuestion

DEFAULT_MAX_TOKENS = 48
"""Of an answer to a question that states no other: enough for what a rule can check."""

Load = Callable[[Path], Engine]
Progress = Callable[[int, int], None]


class EvaluationFailed(OperatorError):
    """A question could not be asked."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """What a model said to the question of this key. `tokens` of prompt and answer together."""

    key: str
    model: str
    tokens: int
    text: str


class AnswerBook:
    """A file of answers, of any models and to any questions. It only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[tuple[str, str], ModelAnswer] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                if (answer := _answer(line)) is not None:
                    self._answers[answer.model, answer.key] = answer

    def of(self, model: str) -> dict[str, ModelAnswer]:
        """By the question's key."""
        return {key: answer for (name, key), answer in self._answers.items() if name == model}

    @contextmanager
    def writing(self) -> Iterator[Callable[[ModelAnswer], None]]:
        """What is passed to it is on the file when it returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:

            def write(answer: ModelAnswer) -> None:
                self._answers[answer.model, answer.key] = answer
                file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
                file.flush()

            if file.tell():
                file.write("\n")  # behind a line that a stop cut short
            yield write


def evaluate(
    model: Path, questions: Sequence[CheckedQuestion], book: AnswerBook, load: Load, progress: Progress
) -> dict[str, ModelAnswer]:
    """The answer to every question, by its key. The model is loaded only where one is missing.

    Raises:
        OperatorError: the model cannot be loaded, or cannot be asked a question.
    """
    identity = fingerprint(model)
    known = book.of(identity)
    missing = [question for question in questions if question.key not in known]
    if missing:
        with load(model) as engine, book.writing() as write:

            def keep(answer: ModelAnswer) -> None:
                write(answer)
                known[answer.key] = answer
                progress(len(known), len(questions))

            asyncio.run(_ask_all(engine, identity, missing, keep))
    return {question.key: known[question.key] for question in questions}


def fingerprint(model: Path) -> str:
    """Of a model's files by name, size and time of change: gigabytes are not read for it."""
    files: Iterable[Path] = sorted(model.iterdir()) if model.is_dir() else [model]
    stated = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return f"{model.name}-{hashlib.sha256(repr(stated).encode()).hexdigest()[:12]}"


async def _ask_all(
    engine: Engine, model: str, questions: Sequence[CheckedQuestion], keep: Callable[[ModelAnswer], None]
) -> None:
    """All at once: the engine queues what it has no room for.

    Raises:
        ExamFailed
    """
    try:
        async with asyncio.TaskGroup() as group:
            for question in questions:
                group.create_task(_ask(engine, model, question, keep))
    except* EvaluationFailed as failures:
        raise failures.exceptions[0] from None


async def _ask(engine: Engine, model: str, question: CheckedQuestion, keep: Callable[[ModelAnswer], None]) -> None:
    (name,) = engine.models
    params = SamplingParams(temperature=0.0, max_tokens=question.max_tokens or DEFAULT_MAX_TOKENS)
    try:
        prompt = engine.models[name].text.encode_chat(question.messages)
        deltas = [delta async for delta in engine.stream(name, prompt, params)]
    except (ChatTemplateError, UnservableRequest, EngineError) as error:
        raise EvaluationFailed(f"{model} cannot be asked {question.messages[-1]['content'][:60]!r}: {error}") from error
    text = "".join(delta.text for delta in deltas)
    keep(ModelAnswer(question.key, model, len(prompt) + sum(len(delta.token_ids) for delta in deltas), text))


def _answer(line: str) -> ModelAnswer | None:
    """None for a line that is not one."""
    try:
        return ModelAnswer(**json.loads(line))
    except (ValueError, TypeError):
        return None
