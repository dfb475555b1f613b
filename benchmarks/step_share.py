"""How much of a step is not the model's forward pass: `python -m benchmarks.step_share`.

Scheduling, preparing inputs, sampling and commit against the whole step, in decode steps of a 0.5 B model.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.checkpoints import half_billion
from benchmarks.traffic import make_jobs
from engine import EngineConfig, SamplingParams
from engine.request import STANDARD, Request
from engine.runtime.loaded_model import LoadedModel
from engine.runtime.model_loading import load
from kernels.dispatch import select_ops

CONCURRENCIES = (1, 8, 32)
STEPS = 24


class _Stopwatch:
    """Adds up the time inside the calls it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = call(*arguments)
            self.seconds += time.perf_counter() - started
            return result

        return timed


def measure(model: LoadedModel, concurrency: int, params: SamplingParams) -> tuple[float, float]:
    """Milliseconds of a whole decode step, and of the model's forward pass with its head in it; medians."""
    forward = _Stopwatch()
    network = model.runner._model
    network.forward = forward.around(type(network).forward.__get__(network))  # type: ignore[method-assign]
    network.logits = forward.around(type(network).logits.__get__(network))  # type: ignore[method-assign]
    for index, job in enumerate(make_jobs(concurrency, model.served.vocab_size)):
        model.scheduler.add(
            Request(
                id=f"{concurrency}-{params.temperature}-{index}",
                tokens=job.prompt,
                prompt_tokens=len(job.prompt),
                params=params,
                seed=index,
                max_tokens=STEPS + concurrency,
                eos_token_ids=(),
                arrival=index,
                service_class=STANDARD,
            )
        )
    whole_ms, forward_ms = [], []
    while True:
        started, forward.seconds = time.perf_counter(), 0.0
        plan = model.scheduler.schedule()
        if plan is None:
            break
        model.scheduler.commit(plan, model.runner.execute(plan).result())
        if plan.total_tokens == concurrency:
            whole_ms.append((time.perf_counter() - started) * 1e3)
            forward_ms.append(forward.seconds * 1e3)
    return statistics.median(whole_ms), statistics.median(forward_ms)


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        model = load("model", half_billion(Path(root)), select_ops(), EngineConfig(), 1.0, None)
    kinds = {"greedy": SamplingParams(temperature=0), "sampled, top_p 0.95": SamplingParams(top_p=0.95)}
    print("decode steps, 0.5 B, bf16: everything that is not the model's forward pass (under 10 %)")
    for name, params in kinds.items():
        for concurrency in CONCURRENCIES:
            whole, forward = measure(model, concurrency, params)
            share = 1 - forward / whole
            print(f"  {name:>20} c={concurrency:<3} step {whole:6.1f} ms, other {whole - forward:5.2f} ms: {share:.1%}")


if __name__ == "__main__":
    main()
