"""The scheduler at work without a model: a fake executor that checks what it reads, and seeded traffic. No torch.

`python -m engine.simulation --seed N` runs one seed again, `--steps 1000000 --jobs 2` a campaign of many.

    traffic    what happens, as values; patterns and faults draw it from a seed
    simulator  runs one seed in virtual time, on a device and a fake executor; report says what came of it
    auditor, time_audit, oracle  judge it: each step, the books of time, the answers
    campaign   many seeds; shrink makes of the one that fails a small case
    load       open-loop load, for benchmarks
"""

from engine.simulation.driver import Transcript, make_request, run_to_completion
from engine.simulation.fake_executor import FakeExecutor

__all__ = ["FakeExecutor", "Transcript", "make_request", "run_to_completion"]
