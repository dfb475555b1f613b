"""What bounds a step: the classes' targets for the first token and for the time between tokens, and the watchdog."""

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
    """The classes below `rank` may have at most `prefill_tokens` of prefill each in a step.

    `longest_ns` is the longest that a step with prefill may be predicted to take; None: it is not asked.
    `itl_target_ns` is the tightest target for the time between tokens of a class that has requests in decode, and
    `itl_rank` is that class. See `allowance`.
    """

    rank: int
    prefill_tokens: int
    longest_ns: int | None = None
    itl_rank: int | None = None
    itl_target_ns: int | None = None


class TargetWatch:
    """Makes the guard of each step."""

    def __init__(
        self,
        classes: Sequence[ServiceClass],
        step_tokens: int,
        longest_ns: int,
        cost_model: StepCostModel,
        presence: Presence,
    ) -> None:
        self._classes = classes
        self._step_tokens = step_tokens
        self._longest_ns = longest_ns
        self._cost_model = cost_model
        self._presence = presence

    def guard(self, now_ns: int, decode: StepWork, decoding: Sequence[bool]) -> StepGuard:
        """The bounds for a step that has the work of `decode` in any case. `decoding` says of each class whether it has
        requests that wait for their next token."""
        rank, prefill_tokens = self._first_token_bound(now_ns, decode)
        targets = [
            (each.itl_target_ms * 1_000_000, rank)
            for rank, each in enumerate(self._classes)
            if each.itl_target_ms is not None and decoding[rank]
        ]
        itl_target_ns, itl_rank = min(targets, default=(None, None))
        return StepGuard(rank, prefill_tokens, self._longest_ns, itl_rank, itl_target_ns)

    def _first_token_bound(self, now_ns: int, decode: StepWork) -> tuple[int, int]:
        """The rank below which prefill is bounded, and its bound; where no class has a target, there is none below.

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
            return len(self._classes) - 1, self._step_tokens
        target_ns, rank = min(bounds)
        most = self._step_tokens
        return rank, self._cost_model.token_budget(target_ns, decode, low=min(BLOCK_TOKENS, most), high=most)

    def _steps_to_first_token(self, rank: int, now_ns: int) -> int:
        return STEPS_TO_FIRST_TOKEN if self._presence.is_about(rank, now_ns) else 1
