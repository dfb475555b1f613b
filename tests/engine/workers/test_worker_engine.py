"""An engine in a process of its own: the same answers, and streams that outlive the process."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import EngineError, EngineUnavailable, InvalidParameter, UnservableRequest
from engine.grammar.spec import GrammarSpec
from engine.models.config import UnsupportedCheckpoint
from engine.request import STANDARD, FinishReason, PromptInput, SamplingParams, TextDelta, Usage
from engine.workers.worker_engine import WorkerEngine

CONFIG = EngineConfig(dtype="float32", kv_cache_bytes=4 << 20, threads=1, salt_key=b"salt")
PROMPT = [1, 5, 9, 20, 33, 7, 7, 4]


@pytest.fixture(scope="module")
def folder(tiny_folders: dict[str, Path]) -> Path:
    return tiny_folders["llama"]


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[Engine]:
    with Engine.load({"m": folder}, CONFIG) as engine:
        yield engine


@pytest.fixture
def there(folder: Path) -> Iterator[WorkerEngine]:
    with WorkerEngine.load({"m": folder}, CONFIG) as engine:
        yield engine
        engine.requests.check()


async def read(
    engine: Engine | WorkerEngine, *prompts: PromptInput, kill_after: int | None = None
) -> dict[int, list[TextDelta]]:
    """All deltas of a call, by choice. `kill_after`: tokens read after which the process is killed."""
    deltas: dict[int, list[TextDelta]] = {}
    tokens = 0
    async with engine.submit("m", prompts) as stream:
        while batch := await stream.next_batch():
            for delta in batch:
                deltas.setdefault(delta.index, []).append(delta)
                tokens += len(delta.token_ids)
            if kill_after is not None and tokens >= kill_after:
                assert isinstance(engine, WorkerEngine)
                kill(engine)
                kill_after = None
    return deltas


def kill(engine: WorkerEngine) -> None:
    assert engine.supervisor.pid is not None
    os.kill(engine.supervisor.pid, signal.SIGKILL)


def essence(deltas: dict[int, list[TextDelta]]) -> dict[int, object]:
    """The text, tokens, ends and billed numbers of each choice."""
    seen = {}
    for index, each in sorted(deltas.items()):
        last = each[-1]
        assert last.usage is not None
        seen[index] = (
            "".join(delta.text for delta in each),
            [token for delta in each for token in delta.token_ids],
            [round(logprob.logprob, 4) for delta in each for logprob in delta.logprobs],
            last.finish_reason,
            last.stop,
            (last.usage.prompt_tokens, last.usage.completion_tokens),
        )
    return seen


CASES = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    "seeded": SamplingParams(seed=7, max_tokens=40, ignore_eos=True, n=3, frequency_penalty=0.5),
    "logprobs": SamplingParams(seed=3, max_tokens=30, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    "stop": SamplingParams(seed=5, max_tokens=200, ignore_eos=True, stop=("e", "a", "1")),
    "schema": SamplingParams(
        seed=2, max_tokens=60, grammar=GrammarSpec.json_schema({"type": "array", "items": {"type": "integer"}})
    ),
    "allowed": SamplingParams(seed=2, max_tokens=24, allowed_token_ids=frozenset(range(3, 90))),
}


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_is_the_same_in_a_process_of_its_own(here: Engine, there: WorkerEngine, name: str) -> None:
    prompt = PromptInput(PROMPT, CASES[name])
    assert essence(await read(there, prompt, prompt)) == essence(await read(here, prompt, prompt))


@pytest.mark.parametrize("name", [name for name in CASES if name != "stop"])
async def test_an_answer_is_the_same_where_its_process_is_killed(here: Engine, there: WorkerEngine, name: str) -> None:
    prompt = PromptInput(PROMPT, CASES[name])
    whole = await read(there, prompt, kill_after=5)
    assert essence(whole) == essence(await read(here, prompt))
    assert there.requests.replays_total >= 1
