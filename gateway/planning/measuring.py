"""Records the steps of a real run on this machine, and fits their times."""

import asyncio
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from engine.config import EngineConfig
from engine.engine import Engine
from engine.planning.fit_file import MeasuredMachine, StoredFit
from engine.planning.fitting import StepSample, fit_steps
from engine.planning.step_features import features_of
from engine.request import STANDARD, SamplingParams, ServiceClass
from engine.runtime.available_memory import available_bytes
from engine.scheduling.plan import StepPlan

_NAME = "model"
_COPIED_BYTES = 256 << 20
_SQUARE = 1024


class StepRecorder:
    """Records the steps of a model of an engine, on the engine thread, until it is closed."""

    def __init__(self, engine: Engine, model: str = _NAME) -> None:
        self.samples: list[StepSample] = []
        self._engine, self._model = engine, model
        engine.core.record_steps(model, self._on_step)

    def _on_step(self, plan: StepPlan, elapsed_ns: int) -> None:
        features = features_of([row.start for row in plan.rows], [row.tokens for row in plan.rows])
        self.samples.append(StepSample(features, elapsed_ns))

    def close(self) -> None:
        """Record no more."""
        self._engine.core.record_steps(self._model, None)


@dataclass(frozen=True, slots=True)
class PlayedRequest:
    """A request of a real run. Seconds: its arrival from the start, until its first token and until its last one."""

    at_s: float
    ttft_s: float
    total_s: float
    service_class: str
    prompt_tokens: int
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class DueRequest:
    """A request to send `at_s` seconds after the start, whether earlier ones have ended or not."""

    at_s: float
    token_ids: tuple[int, ...]
    answer_tokens: int
    service_class: ServiceClass = STANDARD
    tenant: str = "plan"


async def play(engine: Engine, due: list[DueRequest], model: str = _NAME) -> list[PlayedRequest]:
    """Send the requests at their times, and wait for all. Answers have exactly their lengths."""
    start_s = time.perf_counter()

    async def one(each: DueRequest) -> PlayedRequest:
        await asyncio.sleep(max(0.0, each.at_s - (time.perf_counter() - start_s)))
        params = SamplingParams(temperature=0, max_tokens=each.answer_tokens, ignore_eos=True)
        first_s = last_s = 0.0
        stream = engine.stream(model, each.token_ids, params, tenant=each.tenant, service_class=each.service_class)
        async for delta in stream:
            if delta.token_ids:
                last_s = time.perf_counter() - start_s
                first_s = first_s or last_s
        name = each.service_class.name
        return PlayedRequest(
            each.at_s, first_s - each.at_s, last_s - each.at_s, name, len(each.token_ids), each.answer_tokens
        )

    return list(await asyncio.gather(*(one(each) for each in due)))


def calibration_load(vocab_size: int, context: int, seconds: float, rate: float, seed: int) -> list[DueRequest]:
    """Poisson arrivals with lengths that differ by a factor of sixty, so that steps of every kind occur: few and many
    rows, long and short prompts. The rate doubles in the second half."""
    random, due, now_s = Random(seed), [], 0.0
    while (now_s := now_s + random.expovariate(rate if now_s < seconds / 2 else 2 * rate)) < seconds:
        longest = context - context // 4
        prompt = max(8, min(longest, round(random.lognormvariate(np.log(context / 16), 1.0))))
        answer = max(2, min(context // 4, round(random.lognormvariate(np.log(48), 0.7))))
        due.append(DueRequest(now_s, tuple(random.choices(range(3, vocab_size), k=prompt)), answer))
    return due


def measure(
    path: Path, config: EngineConfig, *, seconds: float, rate: float, seed: int = 0, say: Callable[[str], None]
) -> StoredFit:
    """Load a model, put a load on it, and fit the times of its steps.

    Raises:
        TooFewSteps: the load was too small.
        UnsupportedCheckpoint, InsufficientMemory, DeviceUnavailable: as `Engine.load` raises them.
    """
    bytes_s, flop_s = measured_rates()
    say(f"memory {bytes_s / 1e9:.1f} GB/s, products {flop_s / 1e9:.0f} GFLOP/s")
    engine = Engine.load({_NAME: path}, config)
    served = engine.models[_NAME]
    context = min(served.max_model_len, 2048)
    due = calibration_load(served.vocab_size, context, seconds, rate, seed)
    say(f"{len(due)} requests in {seconds:g} s")
    with engine:
        recorder = StepRecorder(engine)
        played = asyncio.run(play(engine, due))
        recorder.close()
        alone = asyncio.run(_alone(engine, served.vocab_size))
        stats = engine.stats()[_NAME]
    fit = fit_steps(recorder.samples)
    say(f"{len(played)} answers, {fit.steps} steps")
    sizes = config.scheduler
    single = features_of([0], [_ALONE_TOKENS])
    request_ns = max(0, int(alone * 1e9 - fit.times.predict_ns(single)))
    return StoredFit(
        MeasuredMachine(
            name=platform.node() or "this machine",
            memory_bytes=available_bytes(),
            bytes_s=bytes_s,
            flop_s=flop_s,
            on_gpu=config.device == "cuda",
            model=path.name,
            weight_bytes=_weight_bytes(path),
            num_blocks=stats.num_blocks,
            max_running=sizes.max_running,
            step_tokens=sizes.step_tokens,
            chunk_tokens=sizes.chunk_tokens,
            max_model_len=served.max_model_len,
            request_ns=request_ns,
        ),
        fit,
    )


def _weight_bytes(path: Path) -> int:
    """Of a GGUF file, or of a folder's safetensors."""
    files = [path] if path.is_file() else path.glob("*.safetensors")
    return sum(each.stat().st_size for each in files)


_ALONE_TOKENS, _ALONE_REQUESTS = 64, 9


async def _alone(engine: Engine, vocab_size: int) -> float:
    """Median time to the first token of requests that are alone, in seconds."""
    random, times = Random(1), []
    for _ in range(_ALONE_REQUESTS):
        prompt = tuple(random.choices(range(3, vocab_size), k=_ALONE_TOKENS))
        [played] = await play(engine, [DueRequest(0.0, prompt, 2)])
        times.append(played.ttft_s)
    return sorted(times)[_ALONE_REQUESTS // 2]


def measured_rates() -> tuple[float, float]:
    """Bytes per second that a sum over memory reads, and float32 operations per second of a product: the best of a
    few."""
    memory, square = np.ones(_COPIED_BYTES // 4, np.float32), np.ones((_SQUARE, _SQUARE), np.float32)

    def best(action: Callable[[], object]) -> float:
        times = []
        for _ in range(4):
            started = time.perf_counter()
            action()
            times.append(time.perf_counter() - started)
        return min(times)

    return _COPIED_BYTES / best(memory.sum), 2 * _SQUARE**3 / best(lambda: square @ square)
