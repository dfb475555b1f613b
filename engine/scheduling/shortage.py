"""How large a step may be after the device had no room for one: half at once, and slowly more again."""

RECOVERY_STEPS = 64
"""After so many steps for which there was room, one may be twice as large."""


class StepLimit:
    """The most tokens of a step. Whoever plans it gives each request that runs one, even if that is more."""

    def __init__(self, most_tokens: int) -> None:
        self._most_tokens = most_tokens
        self._steps = 0
        self.tokens = most_tokens

    def lower(self, step_tokens: int) -> None:
        """There was no room for a step of this size."""
        self.tokens = max(1, min(self.tokens, step_tokens) // 2)
        self._steps = 0

    def note_step(self) -> None:
        """There was room for a step."""
        if self.tokens == self._most_tokens:
            return
        self._steps += 1
        if self._steps == RECOVERY_STEPS:
            self.tokens = min(2 * self.tokens, self._most_tokens)
            self._steps = 0
