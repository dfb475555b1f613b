"""The recurrent states of a step's rows on a device, where drafts are accepted before the host knows it."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class DeviceStates:
    """The states of a step, for gated delta nets. Letters in shapes: `kernels.delta`.

    memory: float32 [slots, layers, words], of the layers that have states; see `kernels.delta.DeltaShape`. Written by
        the step. A row at position 0 has the zero state before it.
    rows: int32 [R, 8], encoded `kernels.step.Row`. A row with drafts leaves its state as it is until it is settled.
    token_rows: int32 [T], index of each token's row.
    saves: int32 [N, 2], encoded `kernels.step.RowSave`.
    drafted_tokens: tokens of the step's first rows up to the last one with drafts, whose inputs are kept until they are
        settled; 0 if no row has drafts.
    """

    memory: Tensor
    rows: Tensor
    token_rows: Tensor
    saves: Tensor
    drafted_tokens: int = 0
