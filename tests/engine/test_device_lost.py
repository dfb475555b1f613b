"""A device that fails every step from now on: no request waits for it, and the engine reports that it is not ready."""

import asyncio
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, EngineError, SamplingParams
from engine.errors import DeviceLost
from engine.scheduling import StepResult
from engine.scheduling.plan import PendingStep, StepPlan

PROMPT = list(range(5, 25))
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PATIENCE_SECONDS = 10.0


class _Broken:
    def result(self) -> StepResult:
        raise DeviceLost("an illegal memory access")


def break_device(plan: StepPlan) -> PendingStep:
    raise DeviceLost("an illegal memory access")


def break_step(plan: StepPlan) -> PendingStep:
    return _Broken()


async def error_of(engine: Engine, model: str) -> str:
    with pytest.raises(EngineError) as raised:
        async for _ in engine.stream(model, PROMPT, GREEDY):
            pass
    return str(raised.value)


@pytest.mark.parametrize("execute", [break_device, break_step], ids=["launch", "result"])
async def test_all_requests_fail_and_the_engine_is_not_ready(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, execute: object
) -> None:
    config = EngineConfig(dtype="float32", kv_cache_bytes=8 << 20)
    with Engine.load({"llama": tiny_folders["llama"], "qwen3": tiny_folders["qwen3"]}, config) as engine:
        assert engine.ready
        monkeypatch.setattr(engine._core._runtimes["llama"].executor, "execute", execute)
        async with asyncio.timeout(PATIENCE_SECONDS):
            errors = await asyncio.gather(*(error_of(engine, model) for model in ("llama", "llama", "qwen3")))
            assert errors[0] == "the engine lost its device"
            assert set(errors) <= {"the engine lost its device", "the engine is closed"}
            while engine.ready:
                await asyncio.sleep(0.01)
            with pytest.raises(EngineError, match="closed"):
                await anext(engine.stream("qwen3", PROMPT, GREEDY))
