"""Cost of a step apart from the model: `python -m benchmarks.step_loop`.

The engine as it serves, from its scheduler to the text that its streams hand out, around a model that takes no time of
a processor: a step sleeps through its forward pass. Requests decode one token a step each. In microseconds a step, the
medians of: how long the model stands still between two steps, and the processor time of the engine's thread; and the
mean processor time of the event loop's. A second run says which part takes how much of the engine's thread. Watching
costs a microsecond or two a part; what no part is charged with is under `rest`.
"""

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from engine.catalog.catalog import fetch
from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import SchedulerConfig
from engine.engine import Engine
from engine.execution.runner import ModelRunner
from engine.memory.block_pool import BlockPool
from engine.memory.kv_cache import KVCacheManager
from engine.request import SamplingParams
from engine.runtime.loaded_model import LoadedModel, ServedModel
from engine.runtime.thread import EngineThread
from engine.scheduling.scheduler import Scheduler
from gateway.config.settings import Settings
from kernels.arrays import BFLOAT16, FLOAT32, Array, Floats, Ints
from kernels.cpu.native_ops import NativeOps
from kernels.host import HostOps, StepRows
from kernels.layout import BLOCK_TOKENS

MODEL = "weightless"
ROWS = (1, 8, 32, 256)
VOCAB = 1024
"""Few tokens: what a draw costs by the size of the vocabulary is another benchmark's."""
HIDDEN = 64
STEPS = 200
LEFT_OUT = 20
"""Steps at the beginning and at the end that are not counted: those with prompts, and those that requests end in."""
PROMPT_TOKENS = 100
BLOCKS_A_ROW = (PROMPT_TOKENS + STEPS) // 16 + 2
KINDS = {"greedy": SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)}
KINDS["top_p 0.95"] = SamplingParams(top_p=0.95, max_tokens=STEPS, ignore_eos=True)


class WeightlessModel:
    """In place of a model on the processor: hidden states of zeros, the same logits in every step."""

    def __init__(self, ops: HostOps, step_s: float, most_rows: int) -> None:
        self.ops, self._step_s = ops, step_s
        self.config = SimpleNamespace(experts=None, vocab_size=VOCAB, hidden_size=HIDDEN, windows=(None,))
        self._logits = np.random.default_rng(0).standard_normal((most_rows, VOCAB), FLOAT32)
        self._inside = _Moment(0.0, 0.0)
        self.launches: list[_Moment] = []
        """When each step came, by clocks that stand still while the model is at it."""

    reads_past_context = False

    def allocate_kv(self, num_blocks: int) -> Array:
        return np.zeros((1, num_blocks, BLOCK_TOKENS, 2, 1, 16), BFLOAT16)

    def forward(self, token_ids: Ints, _rows: StepRows, _kv: Array, wanted: Ints | None = None) -> Array:
        begun = _Moment.now()
        self.launches.append(begun - self._inside)
        hidden = np.zeros((len(token_ids if wanted is None else wanted), HIDDEN), BFLOAT16)
        time.sleep(self._step_s)
        self._inside += _Moment.now() - begun
        return hidden

    def logits(self, hidden: Array) -> Floats:
        begun = _Moment.now()
        logits = self._logits[: len(hidden)].copy()
        self._inside += _Moment.now() - begun
        return logits


@dataclass(frozen=True, slots=True)
class _Moment:
    """Seconds of the clock, and of the thread's processor time."""

    clock: float
    thread: float

    @classmethod
    def now(cls) -> "_Moment":
        return cls(time.perf_counter(), time.thread_time())

    def __add__(self, other: "_Moment") -> "_Moment":
        return _Moment(self.clock + other.clock, self.thread + other.thread)

    def __sub__(self, other: "_Moment") -> "_Moment":
        return _Moment(self.clock - other.clock, self.thread - other.thread)


class _Watch:
    """Adds up the processor time inside the calls that it wraps; of a call inside another, to the inner one alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._inner: list[float] = []

    def on(self, owner: Any, name: str, part: str) -> None:
        call = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            self._inner.append(0.0)
            begun = time.thread_time()
            try:
                return call(*arguments, **named)
            finally:
                taken = time.thread_time() - begun
                self.seconds[part] += taken - self._inner.pop()
                if self._inner:
                    self._inner[-1] += taken

        setattr(owner, name, timed)


def watch_parts(engine: Engine, loaded: LoadedModel) -> _Watch:
    """Time the parts of a step, from now on. What is in the runner and in no part of it, is `results`."""
    watch, runner = _Watch(), cast(Any, loaded.runner)
    watch.on(runner._model, "forward", "model")
    watch.on(runner._model, "logits", "model")
    watch.on(runner._sampler, "sample", "sample")
    watch.on(runner._placer, "place", "inputs")
    watch.on(runner, "execute", "results")
    watch.on(loaded.scheduler, "schedule", "plan")
    watch.on(loaded.scheduler, "step_limits", "plan")
    watch.on(loaded.scheduler, "commit", "commit")
    core = cast(Any, engine)._core
    watch.on(core, "_record_step", "wait prediction")
    watch.on(core._runtimes[MODEL].step_loop, "_before_launch", "hand-over")
    watch.on(core, "_dispatch", "hand-over")
    watch.on(core, "_receive", "inbox")
    return watch


def load_engine(rows: int, step_s: float) -> tuple[Engine, LoadedModel]:
    """An engine of one model that weighs nothing, with SmolLM2's tokenizer."""
    text = open_checkpoint(fetch("smollm2", Settings().models_dir)).text_processor()
    config = SchedulerConfig(max_running=rows, step_tokens=max(512, rows))
    num_blocks = 2 * rows * BLOCKS_A_ROW
    scheduler = Scheduler(config, KVCacheManager(BlockPool(num_blocks)), 8 * STEPS)
    thread = EngineThread()
    model = cast(Any, thread.submit(lambda: WeightlessModel(NativeOps(1), step_s, rows)).result())
    runner = ModelRunner(model, num_blocks=num_blocks, num_slots=rows, max_model_len=scheduler.window_tokens)
    windows = {each.name: scheduler.window_tokens_of(each.name) for each in config.classes}
    served = ServedModel(MODEL, text, scheduler.window_tokens, windows, VOCAB, text.tokenizer.eos_token_ids, 0, "0")
    nothing = cast(Any, None)
    loaded = LoadedModel(served, nothing, model, scheduler, runner, nothing)
    return Engine([loaded], thread, bytes(32), {}, step_timeout_seconds=60.0), loaded


async def serve(engine: Engine, rows: int, params: SamplingParams) -> float:
    """Run `rows` requests in parallel to their ends; mean seconds of the event loop's thread a step."""
    marks: list[float] = []

    async def read(number: int) -> None:
        prompt = [number % VOCAB] + [7] * PROMPT_TOKENS
        async for _ in engine.stream(MODEL, prompt, params, tenant=f"tenant {number % 8}"):
            if number == 0:
                marks.append(time.thread_time())

    await asyncio.gather(*map(read, range(rows)))
    counted = marks[LEFT_OUT:-LEFT_OUT]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds a step. `parts` of the engine's thread, where it was watched."""

    standstill: float
    engine_thread: float
    event_loop: float
    parts: dict[str, float]


def measure(rows: int, params: SamplingParams, step_s: float, *, watched: bool) -> Figures:
    """One run. Its steps begin when all requests have their prompts, and end before the first request does."""
    engine, loaded = load_engine(rows, step_s)
    watch = watch_parts(engine, loaded) if watched else None
    with engine:
        loop_s = asyncio.run(serve(engine, rows, params))
    launches = cast(Any, loaded.model).launches[-STEPS + LEFT_OUT : -LEFT_OUT]
    between = [after - before for before, after in pairwise(launches)]
    thread_us = 1e6 * statistics.median(each.thread for each in between)
    parts = {}
    if watch is not None:
        steps = len(cast(Any, loaded.model).launches)
        parts = {name: 1e6 * seconds / steps for name, seconds in watch.seconds.items() if name != "model"}
        parts["rest"] = thread_us - sum(parts.values())
    return Figures(1e6 * statistics.median(each.clock for each in between), thread_us, 1e6 * loop_s, parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="What a step costs beside the model.")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--step-ms", type=float, default=3.0, help="how long the model sleeps a step")
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=[*KINDS])
    parser.add_argument("--no-parts", action="store_true", help="leave out the second run")
    chosen = parser.parse_args(arguments)
    print("us a step: the model stands still, engine thread, event loop")
    for kind in chosen.kind:
        for rows in chosen.rows:
            plain = measure(rows, KINDS[kind], chosen.step_ms / 1e3, watched=False)
            print(
                f"{kind:>11} {rows:>4} rows {plain.standstill:8.0f} {plain.engine_thread:8.0f} {plain.event_loop:8.0f}",
                flush=True,
            )
            if not chosen.no_parts:
                parts = measure(rows, KINDS[kind], chosen.step_ms / 1e3, watched=True).parts
                print("             " + ", ".join(f"{name} {us:.0f}" for name, us in parts.items()), flush=True)


if __name__ == "__main__":
    main()
