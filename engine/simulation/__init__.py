"""The scheduler at work without a model: a fake executor that checks what it reads, and seeded traffic. No torch.

`python -m engine.simulation --seed N` runs one seed again.
"""

from engine.simulation.driver import Transcript, make_request, run_to_completion
from engine.simulation.fake_executor import FakeExecutor

__all__ = ["FakeExecutor", "Transcript", "make_request", "run_to_completion"]
