"""Steps that a real engine takes, and usage that was logged, as inputs of a plan."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from gateway.analytics import migrate, open_analytics
from gateway.analytics.sums import TimeRange
from gateway.common.timestamps import unix_ms
from gateway.errors import OperatorError
from gateway.planning.logged_usage import logged_traffic
from gateway.planning.measuring import DueRequest, StepRecorder, play
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_requests import an_event, insert


def test_recorded_steps_have_all_the_work_of_their_requests(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "llama", "llama")
    with Engine.load({"model": folder}, EngineConfig(kv_cache_bytes=1 << 22, max_model_len=128)) as engine:
        recorder = StepRecorder(engine)
        due = [DueRequest(0.0, tuple(range(3, 3 + prompt)), 6) for prompt in (20, 33)]
        played = asyncio.run(play(engine, due))
        recorder.close()
        count = len(recorder.samples)
        asyncio.run(play(engine, due[:1]))
    assert len(recorder.samples) == count, "closed"
    assert sum(sample.features.prefill_tokens for sample in recorder.samples) in (20 + 33, 33 + 4)  # 16 may be cached
    assert sum(sample.features.decode_rows for sample in recorder.samples) == 2 * (6 - 1)
    assert all(sample.ns > 0 for sample in recorder.samples)
    assert sum(sample.ns for sample in recorder.samples) / 1e9 < 2 * max(each.total_s for each in played)
    assert all(0 < each.ttft_s <= each.total_s for each in played)


@pytest.mark.anyio
async def test_logged_usage_is_a_trace(tmp_path: Path) -> None:
    analytics = open_analytics(f"chdb://{tmp_path / 'analytics'}")
    try:
        await migrate(analytics)
        first = replace(
            an_event(1),
            total_latency_ms=500,
            prompt_tokens=90,
            cached_tokens=32,
            completion_tokens=7,
            undelivered_tokens=1,
        )
        later = replace(
            an_event(2, ended_ms=unix_ms(first.occurred_at) + 10_000),
            prompt_tokens=40,
            total_latency_ms=500,
            cached_tokens=0,
            completion_tokens=5,
            undelivered_tokens=0,
        )
        none = replace(an_event(3), completion_tokens=0, undelivered_tokens=0)
        await insert(analytics, [later, first, none])
        at_ms = unix_ms(first.occurred_at)
        window = TimeRange(at_ms - 60_000, at_ms + 3_600_000)
        trace = await logged_traffic(analytics, window)
        assert [row.prompt_tokens for row in trace.rows] == [90, 40]
        assert [row.output_tokens for row in trace.rows] == [8, 5]
        assert [(row.prefix_group, row.prefix_tokens) for row in trace.rows] == [("cached", 32), ("", 0)]
        assert {row.tenant for row in trace.rows} == {first.tenant_id, later.tenant_id}
        assert [row.at_s for row in trace.rows] == [0.0, (unix_ms(later.occurred_at) - at_ms) / 1000]
        with pytest.raises(OperatorError, match="no usage was logged"):
            await logged_traffic(analytics, TimeRange(0, 1000))
    finally:
        await analytics.aclose()
