"""Delays a grammar until the model has finished its reasoning."""

from collections.abc import Sequence

import numpy as np

from engine.grammar.matcher import Bitmask, GrammarMatcher


class AfterReasoning:
    """A `GrammarMatcher` that allows any token but end tokens until the reasoning ends, then delegates to `matcher`.

    `begin_id` and `end_id` are the tokens that open and close the reasoning. `begun` says that the prompt already ends
    inside the reasoning; otherwise `begin_id` is allowed as the first token, and any other first token skips the
    reasoning.
    """

    def __init__(
        self, matcher: GrammarMatcher, *, begin_id: int, end_id: int, begun: bool, eos_token_ids: Sequence[int]
    ) -> None:
        self._matcher = matcher
        self._begin_id, self._end_id = begin_id, end_id
        self._begun = begun
        self._eos_token_ids = tuple(eos_token_ids)
        self._span_tokens = 0
        """Tokens of the reasoning accepted so far, with its markers."""
        self._ended = False

    @property
    def taken(self) -> int:
        return self._span_tokens + self._matcher.taken

    @property
    def _inside(self) -> bool:
        return (self._begun or self._span_tokens > 0) and not self._ended

    def accept(self, tokens: Sequence[int]) -> int:
        for position, token in enumerate(tokens):
            if not self._inside and (self.taken or token != self._begin_id):
                return position + self._matcher.accept(tokens[position:])
            self._span_tokens += 1
            self._ended = token == self._end_id
        return len(tokens)

    def rollback(self, tokens: int) -> None:
        behind = min(tokens, self._matcher.taken)
        self._matcher.rollback(behind)
        if tokens > behind:
            self._span_tokens -= tokens - behind
            self._ended = False

    def fill_bitmask(self, bitmask: Bitmask) -> None:
        if self._inside:
            bitmask.fill(-1)
            for token_id in self._eos_token_ids:
                bitmask[token_id // 32] &= ~_bit(token_id)
            return
        self._matcher.fill_bitmask(bitmask)
        if not self.taken:
            bitmask[self._begin_id // 32] |= _bit(self._begin_id)


def _bit(token_id: int) -> np.int32:
    """The bit of a token id in its int32 word of a bitmask. Bit 31 is the sign bit."""
    return np.uint32(1 << token_id % 32).view(np.int32)
