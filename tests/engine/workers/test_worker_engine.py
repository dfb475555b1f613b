"""An engine in a process of its own: the same answers, and streams that outlive the process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.adapters.folder import digest_of
from engine.adapters.source import AdapterSource
from engine.config import EngineConfig, StatedSizes
from engine.engine import Engine
from engine.errors import EngineError, EngineUnavailable, InvalidParameter, UnservableRequest
from engine.grammar.spec import GrammarSpec
from engine.models.config import UnsupportedCheckpoint
from engine.request import STANDARD, PromptInput, SamplingParams, TextDelta, Usage
from engine.runtime.engine_call import EngineCall
from engine.workers.worker_engine import WorkerEngine
from tests.support.peft_adapters import make_adapter
from tests.support.waiting import all_of, until, wait_for

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
        until(lambda: not len(engine.requests))
        engine.requests.check()


async def read(
    engine: Engine | WorkerEngine, *prompts: PromptInput, kill_after: int | None = None
) -> dict[int, list[TextDelta]]:
    """All deltas of a call, by choice. `kill_after`: tokens read after which the process is killed."""
    deltas: dict[int, list[TextDelta]] = {}
    tokens = 0
    async with engine.submit("m", EngineCall(prompts)) as stream:
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


class NearlyEqual(list[float]):
    """Equal to those that differ in their last digits, as they do by which tokens are computed together."""

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, NearlyEqual)
        return len(self) == len(other) and all(abs(one - two) < 1e-3 for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def essence(deltas: dict[int, list[TextDelta]]) -> dict[int, object]:
    """The text, tokens, ends and billed numbers of each choice."""
    seen = {}
    for index, each in sorted(deltas.items()):
        last = each[-1]
        assert last.usage is not None
        seen[index] = (
            "".join(delta.text for delta in each),
            [token for delta in each for token in delta.token_ids],
            NearlyEqual(logprob.logprob for delta in each for logprob in delta.logprobs),
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
        seed=2,
        max_tokens=60,
        grammar=GrammarSpec.json_schema({"type": "array", "items": {"type": "integer"}, "minItems": 400}),
    ),
    "allowed": SamplingParams(seed=2, max_tokens=24, allowed_token_ids=frozenset(range(3, 90))),
}


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_is_the_same_in_a_process_of_its_own(here: Engine, there: WorkerEngine, name: str) -> None:
    prompt = PromptInput(PROMPT, CASES[name])
    assert essence(await read(there, prompt, prompt)) == essence(await read(here, prompt, prompt))


@pytest.mark.parametrize("name", [name for name in CASES if name != "stop"])
async def test_an_answer_is_the_same_where_its_process_is_killed(here: Engine, there: WorkerEngine, name: str) -> None:
    # Longer than what is computed before it is read: the kill meets it.
    prompt = PromptInput(PROMPT, replace(CASES[name], max_tokens=400))
    whole = await read(there, prompt, kill_after=5)
    assert essence(whole) == essence(await read(here, prompt))
    assert there.requests.replays_total >= 1


async def test_an_answer_goes_on_after_a_kill_while_its_reader_is_away(here: Engine, there: WorkerEngine) -> None:
    prompt = PromptInput(PROMPT, SamplingParams(seed=1, max_tokens=400, ignore_eos=True))
    deltas: dict[int, list[TextDelta]] = {}
    async with there.submit("m", EngineCall([prompt])) as stream:
        await asyncio.to_thread(until, lambda: there.stats()["m"].paused == 1)
        kill(there)
        await asyncio.to_thread(until, lambda: there.requests.replays_total == 1 and there.stats()["m"].paused == 1)
        while batch := await stream.next_batch():
            for delta in batch:
                deltas.setdefault(delta.index, []).append(delta)
    assert essence(deltas) == essence(await read(here, prompt))


async def test_a_stream_that_is_left_is_aborted_with_its_usage(there: WorkerEngine) -> None:
    usages: dict[int, Usage] = {}
    prompt = PromptInput(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True, n=2))
    async with there.submit("m", EngineCall([prompt], on_abort=usages.__setitem__)) as stream:
        read_tokens = len((await stream.next_batch())[0].token_ids)
    await wait_for(lambda: len(usages) == 2)
    assert all(usage.prompt_tokens == len(PROMPT) for usage in usages.values())
    assert usages[0].completion_tokens >= read_tokens
    await wait_for(lambda: there.stats()["m"].running == 0)


async def test_a_stream_that_is_left_after_its_process_was_killed_is_billed_for_its_tokens(there: WorkerEngine) -> None:
    usages: dict[int, Usage] = {}
    prompt = PromptInput(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True))
    async with there.submit("m", EngineCall([prompt], on_abort=usages.__setitem__)) as stream:
        read_tokens = sum(len(delta.token_ids) for delta in await stream.next_batch())
        os.kill(there.supervisor.pid or 0, signal.SIGSTOP)
        kill(there)
    await wait_for(lambda: len(usages) == 1)
    assert read_tokens <= usages[0].completion_tokens <= 100
    assert usages[0].prompt_tokens == len(PROMPT)


async def test_a_request_that_ends_two_processes_is_not_given_a_third(there: WorkerEngine) -> None:
    prompt = PromptInput(list(range(3, 90)) * 5, SamplingParams(max_tokens=400, ignore_eos=True))
    async with there.submit("m", EngineCall([prompt])) as stream:
        await wait_for(lambda: len(there.requests) == 1)
        kill(there)
        await wait_for(lambda: there.requests.replays_total == 1)
        kill(there)
        with pytest.raises(EngineError, match="repeatedly"):
            while await stream.next_batch():
                pass


async def test_requests_are_refused_while_the_process_is_started_again(here: Engine, there: WorkerEngine) -> None:
    prompt = PromptInput(PROMPT, CASES["greedy"])
    kill(there)
    await wait_for(lambda: not there.ready)
    with there.reserve("m", STANDARD) as reservation, pytest.raises(EngineUnavailable):
        async with there.submit("m", EngineCall([prompt], reservation=reservation)) as stream:
            await stream.next_batch()
    await wait_for(lambda: there.ready)
    assert essence(await read(there, prompt)) == essence(await read(here, prompt))


async def test_a_process_that_stands_still_is_replaced(
    here: Engine, there: WorkerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(there.supervisor, "_silence_seconds", 1.0)
    prompt = PromptInput(PROMPT, CASES["seeded"])
    async with there.submit("m", EngineCall([prompt])) as stream:
        deltas = {index: [] for index in range(3)}  # type: dict[int, list[TextDelta]]
        for delta in await stream.next_batch():
            deltas[delta.index].append(delta)
        assert there.supervisor.pid is not None
        os.kill(there.supervisor.pid, signal.SIGSTOP)
        while batch := await stream.next_batch():
            for delta in batch:
                deltas[delta.index].append(delta)
    assert essence(deltas) == essence(await read(here, prompt))
    assert there.supervisor.restarts_total == 1


async def test_refusals_are_those_of_an_engine_in_this_process(here: Engine, there: WorkerEngine) -> None:
    regex = SamplingParams(grammar=GrammarSpec.regex("(", "guided_regex"), max_tokens=5)
    for engine in (here, there):
        with pytest.raises(InvalidParameter) as refused:
            await read(engine, PromptInput(PROMPT, regex))
        assert refused.value.param == "guided_regex"
        with pytest.raises(UnservableRequest):
            engine.submit("m", EngineCall([PromptInput([1] * 10_000, CASES["greedy"])]))
        with pytest.raises(KeyError):
            engine.submit("other", EngineCall([PromptInput(PROMPT, CASES["greedy"])]))


async def test_adapters_are_read_by_the_process(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    make_adapter(tmp_path, tiny_folders["llama"])
    adapter = AdapterSource(digest_of(tmp_path), tmp_path)
    answers = []
    for load in (Engine.load, WorkerEngine.load):
        with load({"m": tiny_folders["llama"]}, replace(CONFIG, adapter_slots=1)) as engine:
            async with engine.submit(
                "m", EngineCall([PromptInput(PROMPT, CASES["greedy"])], adapter=adapter)
            ) as stream:
                answers.append([token for delta in await all_of(stream) for token in delta.token_ids])
    assert answers[0] == answers[1]


def test_models_that_cannot_be_loaded_are_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "none of ours"}')
    with pytest.raises(UnsupportedCheckpoint, match="model broken"):
        WorkerEngine.load({"broken": tmp_path}, CONFIG)


def test_a_start_can_be_cancelled(folder: Path) -> None:
    class Cancelled(Exception):
        pass

    def progress(model: str, done: int, total: int) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        WorkerEngine.load({"m": folder}, CONFIG, progress)


async def test_closing_ends_running_requests_and_the_process(folder: Path) -> None:
    engine = WorkerEngine.load({"m": folder}, CONFIG)
    pid = engine.supervisor.pid
    assert pid is not None
    async with engine.submit(
        "m", EngineCall([PromptInput(PROMPT, SamplingParams(max_tokens=400, ignore_eos=True))])
    ) as stream:
        await stream.next_batch()
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineError):
            while await stream.next_batch():
                pass
    assert not is_running(pid)
    with pytest.raises(EngineError, match="closed"):
        await read(engine, PromptInput(PROMPT, CASES["greedy"]))


def test_the_process_ends_with_the_one_that_started_it(folder: Path) -> None:
    program = f"""
import time
from pathlib import Path
from engine.config import EngineConfig, StatedSizes
from engine.workers.worker_engine import WorkerEngine
engine = WorkerEngine.load({{"m": Path({str(folder)!r})}}, EngineConfig(kv_cache_bytes=4 << 20, threads=1))
print(engine.supervisor.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_sizes_that_are_not_stated_are_those_of_the_processs_device(folder: Path) -> None:
    sizes = StatedSizes(max_running=3)
    with WorkerEngine({"m": folder}, CONFIG, sizes=sizes) as engine:
        assert engine.ready
    with pytest.raises(ValueError, match="step_tokens must be at least max_running"):
        WorkerEngine({"m": folder}, CONFIG, sizes=StatedSizes(max_running=9, step_tokens=8))
