"""Embeddings through the engine: one delta, billed as a prompt, scheduled like everything else."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, FinishReason, InvalidParameter, SamplingParams, SchedulerConfig
from engine.request import Pooling
from engine.scheduling import RowResult, ScheduledRow
from engine.simulation import make_request
from tests.engine.scheduling.support import PREMIUM, make_scheduler, outcome, planned
from tests.engine.streams import collect, idle, settle

MEAN = SamplingParams(max_tokens=0, pooling=Pooling.MEAN)


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    config = EngineConfig(
        dtype="float32", kv_cache_bytes=8 << 20, threads=1, scheduler=SchedulerConfig(max_running=8, step_tokens=64)
    )
    with Engine.load({"llama": tiny_folders["llama"]}, config) as engine:
        yield engine


async def test_is_one_delta_without_an_answer(engine: Engine) -> None:
    (delta,) = await collect(engine.stream("llama", list(range(10, 110)), MEAN))
    assert len(delta.embedding) == 64 * 4
    assert (delta.text, delta.token_ids, delta.finish_reason) == ("", (), FinishReason.STOP)
    assert (delta.usage.prompt_tokens, delta.usage.completion_tokens) == (100, 0)
    await settle(engine, lambda: idle(engine))


async def test_may_be_of_as_many_tokens_as_the_window(engine: Engine) -> None:
    (delta,) = await collect(engine.stream("llama", [5] * 512, MEAN))
    assert delta.usage.prompt_tokens == 512


async def test_cancelling_its_reader_frees_its_blocks(engine: Engine) -> None:
    told: list[int] = []
    stream = engine.stream("llama", [5] * 512, MEAN, on_abort=lambda index, usage: told.append(usage.prompt_tokens))
    reader = asyncio.create_task(collect(stream))
    await asyncio.sleep(0)  # until it waits for the engine
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await settle(engine, lambda: idle(engine) and bool(told))
    assert told == [512]


@pytest.mark.parametrize(("param", "others"), [("max_tokens", {"max_tokens": 1}), ("max_tokens", {}), ("n", {"n": 2})])
def test_goes_with_no_answer(param: str, others: dict[str, int]) -> None:
    given = {"max_tokens": 0} | others if others else {}
    with pytest.raises(InvalidParameter) as refused:
        SamplingParams(pooling=Pooling.MEAN, **given)
    assert refused.value.param == param


def test_gives_way_to_a_higher_class_and_begins_again() -> None:
    """Premium's is computed first. The other one's mean needs its first positions once more, cached or not."""

    def of_row(row: ScheduledRow) -> RowResult:
        done = row.start + row.tokens == row.request.prompt_tokens
        return RowResult(embedding=b"unit") if done else RowResult()

    scheduler = make_scheduler(max_running=1, chunk_tokens=32)
    scheduler.add(make_request("standard", range(100), arrival=0, params=MEAN))
    plans = [scheduler.schedule()]
    scheduler.commit(plans[0], outcome(plans[0], of_row))
    scheduler.add(make_request("premium", range(200, 240), arrival=1, params=MEAN, service_class=PREMIUM))
    ended = []
    while (plan := scheduler.schedule()) is not None:
        plans.append(plan)
        ended += scheduler.commit(plan, outcome(plan, of_row))
        scheduler.check()
    rows = [row for plan in plans for row in planned(plan)]
    assert rows == [
        ("standard", 0, 32),
        ("premium", 0, 32),
        ("premium", 32, 8),
        ("standard", 0, 32),
        ("standard", 32, 32),
        ("standard", 64, 32),
        ("standard", 96, 4),
    ]
    assert [(delta.request_id, delta.embedding) for delta in ended] == [("premium", b"unit"), ("standard", b"unit")]
