"""A step that never returns: its clients receive an error, the log shows its stack, the engine is not ready."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, EngineError, SamplingParams, SchedulerConfig
from engine.request import STANDARD, TextDelta
from engine.runtime.watchdog import StepHung, Watchdog
from engine.scheduling.plan import PendingStep, StepPlan, StepResult

PROMPT = list(range(10, 40))
GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
LIMIT_SECONDS = 1.0
PATIENCE_SECONDS = 20
"""Timeout of events that must happen; the tests do not check how long they take."""


@contextmanager
def watching(limit_seconds: float, on_hang: threading.Event) -> Iterator[Watchdog]:
    watchdog = Watchdog(limit_seconds, on_hang.set)
    watchdog.start()
    yield watchdog
    watchdog.close()


def wait_where_the_log_should_show_it(until: threading.Event) -> None:
    assert until.wait(PATIENCE_SECONDS)


class TestWatchdog:
    def test_what_comes_back_in_time_is_left_alone(self) -> None:
        told = threading.Event()
        with watching(PATIENCE_SECONDS, told) as watchdog:
            for _ in range(3):
                with watchdog:
                    pass
            with pytest.raises(ZeroDivisionError), watchdog:
                1 / 0  # noqa: B018
            assert not watchdog.hung
        assert not told.is_set()

    def test_what_does_not_is_given_up_and_shown_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        told = threading.Event()
        with watching(0.05, told) as watchdog, caplog.at_level(logging.CRITICAL), pytest.raises(StepHung), watchdog:
            wait_where_the_log_should_show_it(told)
        assert watchdog.hung
        [record] = caplog.records
        assert "longer than 0.05 s" in record.getMessage()
        assert "wait_where_the_log_should_show_it" in record.getMessage()

    def test_an_error_that_comes_too_late_is_not_taken_for_one_of_the_step(self) -> None:
        told = threading.Event()
        with watching(0.05, told) as watchdog, pytest.raises(StepHung) as raised, watchdog:
            wait_where_the_log_should_show_it(told)
            raise RuntimeError("the device is gone")
        assert isinstance(raised.value.__cause__, RuntimeError)

    def test_it_says_how_long_the_block_under_way_has_taken(self) -> None:
        with watching(60.0, threading.Event()) as watchdog:
            before = watchdog.age_seconds
            with watchdog:
                time.sleep(0.01)
                within = watchdog.age_seconds
            assert (before, watchdog.age_seconds) == (0.0, 0.0)
        assert within >= 0.01

    def test_time_between_two_steps_is_nobodys(self) -> None:
        told = threading.Event()
        with watching(0.05, told) as watchdog:
            with watchdog:
                pass
            assert not told.wait(0.3)
        assert not watchdog.hung

    @pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
    def test_the_limit_is_a_time(self, seconds: float) -> None:
        with pytest.raises(ValueError, match="step_timeout_seconds must be positive"):
            EngineConfig(step_timeout_seconds=seconds)


class Stuck:
    """Keeps a runner's next step, at its launch or at its result, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: Engine, model: str, *, at_result: bool) -> None:
        self.entered, self.leave, self.left = threading.Event(), threading.Event(), threading.Event()
        runner = engine._core._runtimes[model].executor
        execute = runner.execute

        def result_of(pending: PendingStep) -> StepResult:
            self._wait()
            return pending.result()

        def launch(plan: StepPlan) -> PendingStep:
            if at_result:
                return _Later(lambda: result_of(execute(plan)))
            self._wait()
            return execute(plan)

        monkeypatch.setattr(runner, "execute", launch)

    def _wait(self) -> None:
        self.entered.set()
        assert self.leave.wait(PATIENCE_SECONDS)
        self.left.set()


class _Later:
    def __init__(self, result) -> None:  # type: ignore[no-untyped-def]
        self.result = result


@pytest.fixture
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    config = EngineConfig(
        dtype="float32",
        kv_cache_bytes=8 << 20,
        scheduler=SchedulerConfig(max_running=1, step_tokens=64),
        step_timeout_seconds=LIMIT_SECONDS,
    )
    with Engine.load({"llama": tiny_folders["llama"], "qwen3": tiny_folders["qwen3"]}, config) as engine:
        yield engine


async def error_of(engine: Engine, model: str) -> EngineError:
    deltas: list[TextDelta] = []
    with pytest.raises(EngineError) as raised:
        deltas += [delta async for delta in engine.stream(model, PROMPT, GREEDY, service_class=STANDARD)]
    return raised.value


@pytest.mark.parametrize("at_result", [False, True], ids=["launch", "result"])
async def test_nobody_waits_for_a_step_that_hangs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at_result: bool
) -> None:
    """Not its own request, nor one behind it, nor one of another model; nor who would close the engine."""
    stuck = Stuck(monkeypatch, engine, "llama", at_result=at_result)
    async with asyncio.timeout(PATIENCE_SECONDS):
        errors = await asyncio.gather(*(error_of(engine, model) for model in ("llama", "llama", "qwen3")))
    assert not stuck.left.is_set()
    assert all("timed out" in str(error) for error in errors)
    assert not engine.ready
    assert (engine.health.alive, engine.health.stuck_steps_total) == (False, 1)
    assert "Stuck" in caplog.text or "_wait" in caplog.text
    with pytest.raises(EngineError, match="closed"):
        await anext(engine.stream("qwen3", PROMPT, GREEDY))
    engine.close()
    assert not stuck.left.is_set()
    stuck.leave.set()


async def test_who_comes_back_after_all_touches_nothing(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Stuck(monkeypatch, engine, "llama", at_result=True)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await error_of(engine, "llama")
    scheduler, running = engine._core._runtimes["llama"].scheduler, engine._core._running
    assert scheduler.in_flight == 1
    stuck.leave.set()
    running.result(PATIENCE_SECONDS)
    assert scheduler.in_flight == 1
    assert not engine.ready
