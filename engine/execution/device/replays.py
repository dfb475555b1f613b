"""The captured parts of a step, and the count of steps by how they are launched."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.execution.device.graphs import Capture
from engine.execution.device.inputs import StepInputs
from engine.execution.device.outputs import Forwarded
from engine.execution.device.sampler import Drawn
from engine.models.transformer import Transformer
from engine.scheduling.plan import LaunchStats
from kernels.device_states import DeviceStates


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A step with other sampling needs does not replay `draw`. `settle`: advances the states of rows with drafts by
    their first tokens, int32 [R]; None for a step without both."""

    forward: Callable[[], Forwarded]
    draw: Callable[[], Drawn]
    settle: Callable[[Tensor], None] | None = None


def captured_settling(capture: Capture, model: Transformer, states: DeviceStates) -> Callable[[Tensor], None]:
    """Capture the settling of the step that was captured last."""
    settled = torch.zeros(len(states.rows), dtype=torch.int32, device=states.rows.device)
    replay = capture(lambda: model.settle_on_device(states, settled))

    def settle(tokens: Tensor) -> None:
        settled.copy_(tokens)
        replay()

    return settle


def counted(launches: LaunchStats, inputs: StepInputs) -> LaunchStats:
    """The same with one step more."""
    if inputs.key is not None:
        return replace(launches, replayed_total=launches.replayed_total + 1)
    if inputs.shape.decode_rows == inputs.shape.rows:
        return replace(launches, decode_total=launches.decode_total + 1)
    return replace(launches, prefill_total=launches.prefill_total + 1)
