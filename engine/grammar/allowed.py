"""A grammar that is a fixed set of tokens (`allowed_token_ids`)."""

from collections.abc import Iterable, Sequence

import numpy as np

from engine.grammar.matcher import Bitmask


class AllowedTokens:
    """A `GrammarMatcher` that allows the same token ids at every position. An end token is allowed only if it is
    listed."""

    def __init__(self, token_ids: Iterable[int], vocab_size: int) -> None:
        self._token_ids = frozenset(token_ids)
        bits = np.zeros((vocab_size + 31) // 32 * 32, dtype=np.uint8)
        bits[sorted(self._token_ids)] = 1
        self._words = np.packbits(bits, bitorder="little").view(np.int32)
        self.taken = 0

    def accept(self, tokens: Sequence[int]) -> int:
        accepted = next((i for i, token in enumerate(tokens) if token not in self._token_ids), len(tokens))
        self.taken += accepted
        return accepted

    def rollback(self, tokens: int) -> None:
        self.taken -= tokens

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        bitmask[:] = self._words
