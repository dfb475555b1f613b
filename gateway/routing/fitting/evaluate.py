"""Evaluation: asks a model every question, and stores its answers and their cost in tokens.

Decoding is greedy and many questions run at once. Each answer is appended to a file of JSON lines as soon as it is
complete, so an interrupted evaluation resumes. A model is identified by its files, so another model's answers are not
mixed up with its own. Answers are graded when they are read.
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
"""Token limit of an answer whose question states none: enough for what a rule can grade."""

Load = Callable[[Path], Engine]
Progress = Callable[[int, int], None]


class EvaluationFailed(OperatorError):
    """A question could not be asked."""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """A model's answer to the question `key`. `tokens`: tokens of prompt and answer together."""

    key: str
    model: str
    tokens: int
    text: str


class AnswerBook:
    """Append-only file of answers of any models to any questions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._answers: dict[tuple[str, str], ModelAnswer] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                if (answer := _answer(line)) is not None:
                    self._answers[answer.model, answer.key] = answer

    def of(self, model: str) -> dict[str, ModelAnswer]:
        """The answers of a model, by the question's key."""
        return {key: answer for (name, key), answer in self._answers.items() if name == model}

    @contextmanager
    def writing(self) -> Iterator[Callable[[ModelAnswer], None]]:
        """A function that appends an answer. The answer is in the file when the function returns."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:

            def write(answer: ModelAnswer) -> None:
                self._answers[answer.model, answer.key] = answer
                file.write(json.dumps(asdict(answer), ensure_ascii=False) + "\n")
                file.flush()

            if file.tell():
                file.write("\n")  # after a line that an interruption truncated
            yield write


def evaluate(
    model: Path, questions: Sequence[CheckedQuestion], book: AnswerBook, load: Load, progress: Progress
) -> dict[str, ModelAnswer]:
    """The model's answer to every question, by the question's key. The model is loaded only if an answer is missing.

    Raises:
        OperatorError: the model cannot be loaded, or a question cannot be asked.
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
    """Identity of a model: a hash of its files' names, sizes and times of change. Contents are not read, as they are
    gigabytes."""
    files: Iterable[Path] = sorted(model.iterdir()) if model.is_dir() else [model]
    stated = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return f"{model.name}-{hashlib.sha256(repr(stated).encode()).hexdigest()[:12]}"


async def _ask_all(
    engine: Engine, model: str, questions: Sequence[CheckedQuestion], keep: Callable[[ModelAnswer], None]
) -> None:
    """Ask all questions at once; the engine queues them.

    Raises:
        EvaluationFailed: a question could not be asked.
    """
    try:
        async with asyncio.TaskGroup() as group:
            for question in questions:
                group.create_task(_ask(engine, model, question, keep))
    except ExceptionGroup as failures:
        # Not `except*`: of what is raised there some versions of Python make a group again.
        failed, others = failures.split(EvaluationFailed)
        if failed is None or others is not None:
            raise
        raise failed.exceptions[0] from None


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
    """The answer in a line; None: the line has none."""
    try:
        return ModelAnswer(**json.loads(line))
    except (ValueError, TypeError):
        return None
