"""The recurrent states of a model's sequences on a device."""

from collections.abc import Sequence

from torch import Tensor

from engine.memory.sequence_states import StateCopy


class StateMemory:
    """State slots. `memory`: float32 [slots, layers, words]; see `kernels.delta.DeltaShape`."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory

    def copy(self, copies: Sequence[StateCopy]) -> None:
        """Launch copies, in order."""
        for source, target in copies:
            self.memory[target].copy_(self.memory[source])
