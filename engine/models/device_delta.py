"""Gated delta nets on a device: all rows of a step at once, and drafts settled there."""

from torch import Tensor

from kernels.device_states import DeviceStates
from kernels.ops import DeltaWeights, Ops


class DeviceDeltaNet:
    """The gated delta net of one layer. `place`: the layer's number among those with states."""

    def __init__(self, weights: DeltaWeights, place: int, eps: float, ops: Ops) -> None:
        self._weights, self._place, self._eps, self._ops = weights, place, eps, ops
        self._drafted: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, mixed: Tensor, states: DeviceStates) -> Tensor:
        """[T, Hv Dv] from normed inputs x [T, H] and mixed [T, C + Hv Dv]. Advances the states of the rows without
        drafts, and keeps the inputs of the others for `settle`."""
        gates, count = self._weights.gates(x), states.drafted_tokens
        self._drafted = (_first(mixed, count), _first(gates, count)) if count else None
        return self._ops.gated_delta(mixed, gates, self._weights, self._place, states, self._eps)

    def settle(self, states: DeviceStates, settled: Tensor) -> None:
        """Advance the states of the rows with drafts of the last call by their first `settled` tokens, int32 [R]."""
        assert self._drafted is not None, "the last step had no drafts"
        mixed, gates = self._drafted
        self._ops.settle_delta(mixed, gates, self._weights, self._place, states, settled)

    def release(self) -> None:
        """Release the inputs that were kept for `settle`."""
        self._drafted = None


def _first(lines: Tensor, count: int) -> Tensor:
    """The first lines, which do not keep the others' memory."""
    return lines if count == len(lines) else lines[:count].clone()
