"""The simulated device: the times of its steps, with and without faults."""

from dataclasses import dataclass, replace
from random import Random

from engine.scheduling.cost import H200_LLAMA_8B, StepCostModel, StepWork
from engine.simulation.traffic import Fault, FaultKind

NOISE = 0.1
"""Maximum relative deviation of equal steps."""
SLOW_FACTOR = 5.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """The measured time of a step, and its time without noise and faults."""

    elapsed_ns: int
    usual_ns: int


class Stages:
    """When the steps of a pipeline end, of which each takes an equal part of its time in each stage, in order."""

    def __init__(self, count: int) -> None:
        self._ends_ns = [0] * count
        self.busy_ns = 0
        """Time that all stages together have computed."""

    def run(self, now_ns: int, elapsed_ns: int) -> int:
        """Launch a step that takes `elapsed_ns` in all stages together. Returns when it ends."""
        at_ns, count = now_ns, len(self._ends_ns)
        for stage, end_ns in enumerate(self._ends_ns):
            at_ns = max(at_ns, end_ns) + elapsed_ns * (stage + 1) // count - elapsed_ns * stage // count
            self._ends_ns[stage] = at_ns
        self.busy_ns += elapsed_ns
        return at_ns


class Device:
    """Draws step times from the reference device's cost model. `good_steps`: steps since the last fault."""

    def __init__(self, seed: int, speed: float, token_factor: float = 1.0) -> None:
        costs = replace(H200_LLAMA_8B, token_ns=token_factor * H200_LLAMA_8B.token_ns)
        self._model = StepCostModel.from_coefficients(costs)
        self._rng = Random(seed)
        self._speed = speed
        self._hang_ns = 0
        self._slow_steps = 0
        self._still_steps = 0
        self.good_steps = 0

    def apply(self, fault: Fault) -> None:
        """Apply a fault of time to the next steps."""
        if fault.kind is FaultKind.HANG:
            self._hang_ns += fault.ns
        elif fault.kind is FaultKind.SLOW:
            self._slow_steps += fault.steps
        else:
            assert fault.kind is FaultKind.STILL, f"{fault.kind} is no fault of the device"
            self._still_steps += fault.steps

    def usual_ns(self, work: StepWork) -> int:
        """The time of a step with this work, without noise and faults."""
        return int(self._model.predict_ns(work) * self._speed)

    def run(self, work: StepWork) -> StepTime:
        usual_ns = self.usual_ns(work)
        elapsed_ns = int(usual_ns * self._rng.uniform(1 - NOISE, 1 + NOISE))
        good = not (self._hang_ns or self._slow_steps or self._still_steps)
        self.good_steps = self.good_steps + 1 if good else 0
        if self._slow_steps:
            self._slow_steps -= 1
            elapsed_ns = int(elapsed_ns * SLOW_FACTOR)
        elapsed_ns += self._hang_ns
        self._hang_ns = 0
        if self._still_steps:
            self._still_steps -= 1
            elapsed_ns = 0
        return StepTime(elapsed_ns, usual_ns)
