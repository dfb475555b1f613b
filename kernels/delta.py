"""The values of a gated delta net: its sizes, the layout of its state, and the states of a step's rows. No torch.

T tokens, R rows, H hidden size as in `kernels.ops`; Hk key heads and Hv value heads, each key head of Hv / Hk value
heads; Dk and Dv their dimensions; C = 2 Hk Dk + Hv Dv channels of queries, keys and values; W taps of
the convolution.
"""

from dataclasses import dataclass, field

import numpy as np

from kernels.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Sizes of the gated delta nets of a model. A layer's state of a sequence is `words` float32: the last W - 1 inputs
    of the convolution [W - 1, C], oldest first, then the memory [Hv, Dk, Dv].

    tiled: value head v has key head v % Hk, as in GGUF files; else v // (Hv / Hk).
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.values

    @property
    def values(self) -> int:
        """Hv Dv."""
        return self.value_heads * self.value_dim

    @property
    def kept_words(self) -> int:
        """Words of the convolution's inputs."""
        return (self.taps - 1) * self.channels

    @property
    def words(self) -> int:
        return self.kept_words + self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class StateRows:
    """The states of a step's rows.

    memory: float32 [slots, layers, words], of the layers that have states. Written by the step.
    slots: int64 [R], each row's slot. A row whose context begins in the step has the zero state before it.
    drafts: int64 [R], how many of a row's last tokens are drafts. The state of a row with drafts is left as it is until
        `settle_drafts` of the model.
    saves: int64 [S, 3]: of each state to save its row, the row's tokens after which it is saved, and the slot for it;
        ordered by row and tokens.
    copies: int64 [C, 2], the slots from and to which states were copied before the step.
    """

    memory: Floats
    slots: Ints
    drafts: Ints
    saves: Ints
    copies: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))

    @property
    def drafted(self) -> Ints:
        """Indices of the rows with drafts, int64."""
        rows: Ints = np.flatnonzero(self.drafts)
        return rows
