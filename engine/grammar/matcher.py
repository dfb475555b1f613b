"""Follows one answer through its grammar."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bitmask = npt.NDArray[np.int32]


class GrammarFailed(RuntimeError):
    """A grammar that cannot be followed any further: it has grown too complex, or allows no token at all."""


class GrammarMatcher(Protocol):
    """Where an answer stands in its grammar. It depends on the answer's tokens alone, so a preemption is nothing to it.

    Used by one thread at a time.
    """

    @property
    def taken(self) -> int:
        """How many tokens it has moved past."""
        ...

    def accept(self, tokens: Sequence[int]) -> int:
        """Move past these, up to the first that the grammar does not allow; how many they were. No end token may be
        among them."""
        ...

    def rollback(self, tokens: int) -> None:
        """Go back by so many tokens."""
        ...

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        """Say which tokens may come next: bit i % 32 of word i // 32 of int32 [ceil(V / 32)], for all V tokens. End
        tokens may come where the text may end.

        Raises:
            GrammarFailed: it cannot tell.
        """
        ...
