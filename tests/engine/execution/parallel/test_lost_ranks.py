"""An engine whose rank ends, hangs or is slow: it ends at once and says which; no process is left."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineError, SamplingParams
from engine.completion import collect
from engine.config import COLLECTIVE_TIMEOUT_SECONDS
from tests.support.rank_engines import GREEDY, MODEL, REPEATING, load_engine

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 3.0
"""Of the rank that hangs; the others have the usual one."""
ENDLESS = SamplingParams(temperature=0, ignore_eos=True, max_tokens=400)


@pytest.fixture
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    with load_engine(tiny_folders["llama"], tensor_parallel=2) as loaded:
        yield loaded


def ranks_of(engine: Engine) -> tuple[int, ...]:
    assert engine._ranks is not None
    return engine._ranks.process_ids


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


async def until_gone(engine: Engine, seconds: float) -> float:
    """Seconds until the engine is no longer ready."""
    begun_s = time.monotonic()
    async with asyncio.timeout(seconds):
        while engine.ready:
            await asyncio.sleep(0.01)
    return time.monotonic() - begun_s


async def broken_by(engine: Engine, number: signal.Signals, rank: int = 1) -> str:
    """The error of a stream during whose steps a rank gets a signal."""
    stream = engine.stream(MODEL, REPEATING, ENDLESS)
    await anext(stream)
    os.kill(ranks_of(engine)[rank - 1], number)
    with pytest.raises(EngineError) as raised:
        await collect(stream, 1)
    return str(raised.value)


def test_a_killed_rank_ends_the_engine_at_once(engine: Engine) -> None:
    [process] = ranks_of(engine)
    begun_s = time.monotonic()
    message = asyncio.run(broken_by(engine, signal.SIGKILL))
    assert time.monotonic() - begun_s < COLLECTIVE_TIMEOUT_SECONDS / 2
    assert re.search(rf"rank 1 of 2 \(part 1 of stage 0\), process {process}, was ended by SIGKILL", message)
    asyncio.run(until_gone(engine, 15))
    with pytest.raises(EngineError):
        engine.generate(MODEL, [REPEATING], GREEDY)


@pytest.mark.parametrize("sizes", [(4, 1), (2, 2)], ids=["tp4", "tp2-pp2"])
def test_of_several_ranks_the_killed_one_is_named(sizes: tuple[int, int], tiny_folders: dict[str, Path]) -> None:
    """The others fail because of it."""
    tensor, stages = sizes
    with load_engine(tiny_folders["llama"], tensor_parallel=tensor, pipeline_parallel=stages) as engine:
        processes = ranks_of(engine)
        message = asyncio.run(broken_by(engine, signal.SIGKILL, rank=3))
        assert re.search(rf"rank 3 of 4 \(.*\), process {processes[2]}, was ended by SIGKILL", message)
        engine.close()
        assert not any(map(is_there, processes))


def test_a_rank_that_ends_between_steps_ends_the_engine(engine: Engine) -> None:
    os.kill(ranks_of(engine)[0], signal.SIGKILL)
    asyncio.run(until_gone(engine, 15))


def test_a_rank_that_hangs_is_given_up_and_named(tiny_folders: dict[str, Path]) -> None:
    settings = {"tensor_parallel": 2, "collective_timeout_seconds": TIMEOUT_S}
    with load_engine(tiny_folders["llama"], **settings) as engine:
        [process] = ranks_of(engine)
        message = asyncio.run(broken_by(engine, signal.SIGSTOP))
    assert f"rank 1 of 2 (part 1 of stage 0), process {process}: no response" in message
    assert f"timeout {TIMEOUT_S:g} s" in message
    assert not is_there(process)


def test_a_slow_rank_changes_nothing(engine: Engine) -> None:
    expected = [choice.token_ids for choice in engine.generate(MODEL, [REPEATING], GREEDY)[0]]

    async def answer() -> list[tuple[int, ...]]:
        stream = asyncio.create_task(_collect(engine))
        for _ in range(3):
            os.kill(ranks_of(engine)[0], signal.SIGSTOP)
            await asyncio.sleep(0.2)
            os.kill(ranks_of(engine)[0], signal.SIGCONT)
            await asyncio.sleep(0.02)
        return await stream

    assert asyncio.run(answer()) == expected
    assert engine.ready


async def _collect(engine: Engine) -> list[tuple[int, ...]]:
    return [each.token_ids for each in await collect(engine.stream(MODEL, REPEATING, GREEDY), 1)]


def test_ranks_end_with_their_engines_process(tiny_folders: dict[str, Path]) -> None:
    """Also when it is killed in the middle of a step."""
    program = f"""
import json, threading
from pathlib import Path
from tests.support.rank_engines import MODEL, REPEATING, load_engine
from engine import SamplingParams
engine = load_engine(Path({str(tiny_folders["llama"])!r}), tensor_parallel=2)
engine.start()
params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=10_000)
print(json.dumps(engine._ranks.process_ids), flush=True)
while True:
    engine.generate(MODEL, [REPEATING], params)
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ranks = json.loads(process.stdout.readline())
        time.sleep(0.3)
    finally:
        process.kill()
        process.communicate()
    assert len(ranks) == 1
    until_s = time.monotonic() + 20
    while any(map(is_there, ranks)):
        assert time.monotonic() < until_s, "a rank outlives its engine"
        time.sleep(0.02)
