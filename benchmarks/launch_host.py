"""Host work of a decode step on a GPU: `python -m benchmarks.launch_host [--rows 256] [--steps 400]`. Needs no GPU.

The scheduler and the device runner are the engine's; the model, its kernels and the replay of graphs do nothing, and
the "device" is the host, so that what is timed is Python: planning, launching (rows, slots, uploads), reading the
result, and the commit. Sequences of two classes and eight tenants decode one token a step each, one step ahead of the
results. CPU time of the thread, median and 99th percentile. Promise: 1.0 ms a step in the median at 256 rows.
"""

import gc
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import torch

from benchmarks.scheduler_step import decoding_scheduler
from engine.execution.device.runner import DeviceRunner
from engine.models.transformer import Transformer
from engine.scheduling.plan import PendingStep, StepPlan
from kernels.ops import SlotDraws
from kernels.step import StepOps, StepShape, StepTensors

PROMISE_MS = 1.0
_VOCABULARY, _HIDDEN = 1_000, 8
_WINDOW = 2_048
_STEP_NS = 20_000_000

Output = TypeVar("Output")


class _Ops:
    """The ops of a model that does nothing."""

    device = torch.device("cpu")
    dtype = torch.float32
    on_gpu = False


class _Model:
    """Hidden states and logits of zeros."""

    ops = _Ops()
    config = SimpleNamespace(vocab_size=_VOCABULARY, hidden_size=_HIDDEN, linear=None)
    expert_tokens = torch.zeros(0, dtype=torch.int64)
    kv_groups = 1
    adapters = None
    logits_dtype = torch.float32

    def release_drafts(self) -> None:
        """Nothing is kept."""

    def allocate_kv(self, num_blocks: int) -> torch.Tensor:
        return torch.zeros(1)

    def forward(self, token_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return torch.zeros(len(token_ids), _HIDDEN)

    def logits(self, hidden: torch.Tensor, into: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros(len(hidden), _VOCABULARY) if into is None else into.zero_()


class _StepOps:
    """The ops around the model's pass, which leave everything as it is."""

    def derive(self, rows: torch.Tensor, sequences: object, out: StepTensors, shape: StepShape) -> None:
        out.ends.zero_()

    def sample_slots(self, logits: torch.Tensor, *_: object, **__: object) -> SlotDraws:
        sound = torch.ones(len(logits), dtype=torch.bool)
        return SlotDraws(torch.ones(len(logits), dtype=torch.int64), sound, sound)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _captured(compute: Callable[[], Output]) -> Callable[[], Output]:
    output = compute()
    return lambda: output


class _Times:
    """CPU times of the parts of each step, in milliseconds."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}
        self._started = 0.0

    def begin(self) -> None:
        self._started = time.thread_time()

    def end(self, part: str) -> None:
        now = time.thread_time()
        self.parts.setdefault(part, []).append((now - self._started) * 1e3)
        self._started = now


def measure(rows: int, steps: int) -> _Times:
    scheduler = decoding_scheduler(rows)
    scheduler.async_depth = 1
    runner = DeviceRunner(
        cast(Transformer, _Model()),
        cast(StepOps, _StepOps()),
        num_blocks=scheduler.stats().num_blocks,
        num_slots=rows,
        max_model_len=_WINDOW,
    )
    runner.capture_graphs(cast(Any, _captured))
    times, in_flight = _Times(), list[tuple[StepPlan, PendingStep]]()
    gc.collect()
    gc.disable()
    for step in range(-20, steps):
        times.begin()
        plan = scheduler.schedule()
        times.end("schedule")
        assert plan is not None
        assert len(plan.rows) == rows
        in_flight.append((plan, runner.execute(plan)))
        times.end("launch")
        if len(in_flight) > 1:
            landed, pending = in_flight.pop(0)
            result = pending.result()
            times.end("result")
            scheduler.commit(landed, result, elapsed_ns=_STEP_NS)
            times.end("commit")
        if step < 0:
            times.parts.clear()
    gc.enable()
    assert runner.launches.replayed_total == steps + 20
    return times


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    parts = measure(options.rows, options.steps).parts
    parts["step"] = [sum(each) for each in zip(*parts.values(), strict=True)]
    print(f"{options.rows} decoding rows, {options.steps} steps, CPU time of the host in ms")
    for part, values in parts.items():
        p99 = statistics.quantiles(values, n=100)[98]
        print(f"{part:10} median {statistics.median(values):6.3f}   p99 {p99:6.3f}")
    if options.rows == 256:
        print(f"promised: {PROMISE_MS:g} in the median")


if __name__ == "__main__":
    main()
