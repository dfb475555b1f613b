"""Keeps steps short enough for the class with the tightest target for its first token."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS
from engine.request import ServiceClass
from engine.scheduling.cost import StepCostModel, StepWork
from engine.scheduling.presence import Presence

STEPS_TO_FIRST_TOKEN = 10
"""So many steps of the longest kind fit the target of a class for its first token."""


@dataclass(frozen=True, slots=True)
class StepGuard:
    """The classes below `rank` may have at most `prefill_tokens` of prefill each in a step."""

    rank: int
    prefill_tokens: int


class TargetWatch:
    """Bounds the steps of those below a class with a target."""

    def __init__(
        self, classes: Sequence[ServiceClass], step_tokens: int, cost_model: StepCostModel, presence: Presence
    ) -> None:
        self._classes = classes
        self._step_tokens = step_tokens
        self._cost_model = cost_model
        self._presence = presence

    def guard(self, now_ns: int, decode: StepWork) -> StepGuard | None:
        """The bound for a step that has the work of `decode` in any case; None where no class has a target.

        A first token waits for the rest of the step under way, and then takes a step or two of its own prompt and what
        a busy machine adds; so while a class with a target is about, a step of those below gets a share of it. Small
        steps cost throughput, which nobody should pay for a class that does not come: while it is not about, a step
        may take the whole target. Longer than that is never right, as the next request would miss its target for the
        sake of a step alone; and it hardly costs anything, since where steps are that long, little of one is what it
        costs whatever is in it.
        """
        bounds = [
            (each.ttft_target_ms * 1_000_000 // self._steps_to_first_token(rank, now_ns), rank)
            for rank, each in enumerate(self._classes)
            if each.ttft_target_ms is not None
        ]
        if not bounds:
            return None
        target_ns, rank = min(bounds)
        most = self._step_tokens
        tokens = self._cost_model.token_budget(target_ns, decode, low=min(BLOCK_TOKENS, most), high=most)
        return StepGuard(rank, tokens)

    def _steps_to_first_token(self, rank: int, now_ns: int) -> int:
        return STEPS_TO_FIRST_TOKEN if self._presence.is_about(rank, now_ns) else 1
