"""Generates the teacher's answers in large batches, into a file that grows line by line."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig, SchedulerConfig
from engine.distillation.prompts import Prompt
from engine.engine import Engine
from engine.request import FinishReason, SamplingParams

MAX_ANSWER_TOKENS = 144
MAX_PROMPT_TOKENS = 512
"""Prompts are not truncated; longer ones are skipped."""

_RUNNING = 128
_NAME = "teacher"

AnswerProgress = Callable[[int, int], None]
"""Called with (prompts answered, prompts in total)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The token ids of a prompt and of the teacher's answer, including the end-of-text token if it was generated."""

    digest: str
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


def write_answers(
    teacher: Path,
    prompts: Sequence[Prompt],
    path: Path,
    *,
    seed: int,
    progress: AnswerProgress | None = None,
) -> None:
    """Answer every prompt that `path` has no answer for. An interrupted run resumes from the file.

    An answer depends on the teacher, the prompt and the seed. The file is in the order of completion.

    Raises:
        UnsupportedCheckpoint: the teacher cannot be served.
        ChatTemplateError: its template rejects a prompt.
    """
    done = {answer.digest for answer in read_answers(path)} if path.exists() else set()
    waiting = [prompt for prompt in prompts if prompt.digest not in done]
    if not waiting:
        return
    _cut_torn_line(path)
    scheduler = SchedulerConfig(max_running=_RUNNING, step_tokens=4 * _RUNNING)
    config = EngineConfig(scheduler=scheduler, max_model_len=MAX_PROMPT_TOKENS + MAX_ANSWER_TOKENS)
    with Engine.load({_NAME: teacher}, config) as engine:
        asyncio.run(_Writer(engine, path, seed, len(prompts), progress).write(waiting))


def read_answers(path: Path) -> list[Answer]:
    """Every complete line of the file; an incomplete last line is ignored."""
    answers = []
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                value = json.loads(line)
                answers.append(Answer(value["prompt"], tuple(value["prompt_ids"]), tuple(value["answer_ids"])))
    return answers


def _cut_torn_line(path: Path) -> None:
    if path.exists():
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)


class _Writer:
    """Runs twice as many streams as the engine has slots, so that it never waits for a prompt."""

    def __init__(self, engine: Engine, path: Path, seed: int, total: int, progress: AnswerProgress | None) -> None:
        self._engine, self._path, self._seed = engine, path, seed
        self._total, self._progress = total, progress

    async def write(self, waiting: Sequence[Prompt]) -> None:
        done = self._total - len(waiting)
        queue = iter(waiting)
        with self._path.open("a", encoding="utf-8") as file:

            async def work(prompts: Iterable[Prompt]) -> None:
                nonlocal done
                for prompt in prompts:
                    answer = await self._answer(prompt)
                    if answer is not None:
                        file.write(_line(answer))
                        file.flush()
                    done += 1
                    if self._progress is not None:
                        self._progress(done, self._total)

            async with asyncio.TaskGroup() as group:
                for _ in range(2 * _RUNNING):
                    group.create_task(work(queue))

    async def _answer(self, prompt: Prompt) -> Answer | None:
        served = self._engine.models[_NAME]
        prompt_ids = prompt.encode(served.text)
        if len(prompt_ids) > min(MAX_PROMPT_TOKENS, served.max_model_len - 1):
            return None
        params = SamplingParams(
            max_tokens=MAX_ANSWER_TOKENS, temperature=prompt.temperature, seed=prompt.seed(self._seed)
        )
        answer_ids: list[int] = []
        async for delta in self._engine.stream(_NAME, prompt_ids, params):
            answer_ids.extend(delta.token_ids)
            if delta.finish_reason is FinishReason.STOP and isinstance(delta.stop, int):
                answer_ids.append(delta.stop)
        return Answer(prompt.digest, tuple(prompt_ids), tuple(answer_ids))


def _line(answer: Answer) -> str:
    value = {"prompt": answer.digest, "prompt_ids": answer.prompt_ids, "answer_ids": answer.answer_ids}
    return json.dumps(value, separators=(",", ":")) + "\n"
