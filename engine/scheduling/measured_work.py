"""Limits on extrapolation: how much larger than the measured steps the next one may be."""

from engine.config import LONGEST_STEP_NS

TOKEN_GROWTH, PAIR_GROWTH = 2, 3
"""Maximum size of a step relative to the largest fast step, in tokens and in prefill pairs."""
FAST_STEP_FRACTION = 0.6
"""A step is fast if it takes at most this fraction of `longest_ns`. A step that grows in both dimensions at once then
takes at most (TOKEN_GROWTH + PAIR_GROWTH) * FAST_STEP_FRACTION = 3 times `longest_ns`, below the watchdog's timeout."""
UNLIMITED = 2**62


class MeasuredWork:
    """Bounds the tokens and prefill pairs of a step independently of the cost model, whose prediction is unreliable
    beyond the range it was fitted on.

    The limits grow with fast steps (see `FAST_STEP_FRACTION`) and shrink in proportion after a step longer than
    `longest_ns`. After one slow outlier the limits recover by `TOKEN_GROWTH` per step.
    """

    def __init__(self, *, known: bool = False) -> None:
        """`known`: the cost model was given, not learnt; no limits apply."""
        self.longest_ns = LONGEST_STEP_NS
        self._known = known
        self._tokens = self._pairs = 0

    @property
    def max_tokens(self) -> int:
        """Tokens that the next step may have."""
        return UNLIMITED if self._known else TOKEN_GROWTH * self._tokens

    @property
    def max_pairs(self) -> int:
        """Prefill (query, key) pairs that the next step may have."""
        return UNLIMITED if self._known else PAIR_GROWTH * self._pairs

    def observe(self, tokens: int, pairs: int, elapsed_ns: int) -> None:
        """Record a step of `tokens` tokens and `pairs` prefill pairs that took `elapsed_ns`."""
        if elapsed_ns <= FAST_STEP_FRACTION * self.longest_ns:
            self._tokens = max(self._tokens, tokens)
            self._pairs = max(self._pairs, pairs)
        elif elapsed_ns > self.longest_ns:
            self._tokens = min(self._tokens, tokens * self.longest_ns // elapsed_ns)
            self._pairs = min(self._pairs, pairs * self.longest_ns // elapsed_ns)
