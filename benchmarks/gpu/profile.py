"""Time of a step on the device: the longest kernels, and the gaps between kernels.

Without this, a low figure does not say why. Kernels of replayed graphs are listed one by one.
"""

from collections import Counter
from collections.abc import Callable

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.stage import Stage

STEPS = 5
_SHOWN = 15
_NAME_CHARS = 60


def profile_steps(stage: Stage, name: str, step: Callable[[], object]) -> None:
    """Profile `STEPS` calls of `step`. Times are of all calls together, divided by their number."""
    activity, device = (
        (ProfilerActivity.CUDA, DeviceType.CUDA) if stage.on_gpu else (ProfilerActivity.CPU, DeviceType.CPU)
    )
    with profile(activities=[activity]) as profiler:
        for _ in range(STEPS):
            step()
        stage.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end, event.name)
        for event in profiler.events() or ()
        if event.device_type == device and event.cpu_parent is None
    ]
    if not spans:
        stage.skipped(f"{name}: profile", "the profiler saw nothing")
        return
    _note(stage, name, sorted(spans))


def _note(stage: Stage, name: str, spans: list[tuple[float, float, str]]) -> None:
    by_kernel: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for start, end, kernel in spans:
        by_kernel[kernel] += end - start  # type: ignore[assignment]  # microseconds are no whole numbers
        launches[kernel] += 1
    for kernel, microseconds in by_kernel.most_common(_SHOWN):
        detail = f"{launches[kernel] / STEPS:.1f} launches"
        stage.measured(f"{name}: {kernel[:_NAME_CHARS]}", microseconds / STEPS, "us a step", detail)
    stage.measured(f"{name}: all kernels", sum(by_kernel.values()) / STEPS, "us a step", f"{len(spans) / STEPS:.0f}")
    stage.measured(f"{name}: gaps", _idle(spans) / STEPS, "us a step")


def _idle(spans: list[tuple[float, float, str]]) -> float:
    """Microseconds between the first start and the last end in which no span was under way; `spans` in order."""
    idle, until = 0.0, spans[0][0]
    for start, end, _ in spans:
        idle += max(0.0, start - until)
        until = max(until, end)
    return idle
