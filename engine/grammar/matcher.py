"""The interface between grammars and the sampler."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.int32]


class GrammarFailed(RuntimeError):
    """The grammar cannot be followed further: its parser state exceeds the limits, or it allows no token at all."""


class GrammarMatcher(Protocol):
    """The position of one answer in its grammar. The state depends on the answer's tokens alone, so it survives
    preemption.

    Used by one thread at a time.
    """

    @property
    def taken(self) -> int:
        """Number of tokens accepted so far."""
        ...

    def accept(self, tokens: Sequence[int]) -> int:
        """Advance over the longest prefix of `tokens` that the grammar allows, and return its length. `tokens` must not
        contain an end token."""
        ...

    def rollback(self, tokens: int) -> None:
        """Undo the last `tokens` accepted tokens."""
        ...

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        """Write which tokens may come next: bit i % 32 of word i // 32 of int32 [ceil(V / 32)], for all V tokens. End
        tokens are allowed where the text may end.

        Raises:
            GrammarFailed: the state cannot be computed.
        """
        ...
