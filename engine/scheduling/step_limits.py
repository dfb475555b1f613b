"""Limits of one step: the classes' latency targets, the watchdog's timeout and the device's memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS
from engine.request import ServiceClass
from engine.scheduling.class_activity import ClassActivity
from engine.scheduling.cost import StepCostModel, StepWork

STEPS_TO_FIRST_TOKEN = 10
"""The target for the first token fits this many steps of the longest kind."""
YIELDING_FACTOR = 1.5
"""Time of a step with prefill of a class that yields, relative to its decodes, while a higher class is active."""
RECOVERY_STEPS = 64
"""`StepSizeBackoff` doubles its limit after this many steps without a shortage of memory."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Limits on the prefill of one step.

    `rank`, `prefill_tokens`: each class below `rank` has at most `prefill_tokens` tokens of prefill.
    `longest_ns`: the longest predicted time of a step with prefill; None: unlimited.
    `itl_rank`, `itl_target_ns`: the decoding class with the tightest target for the time between tokens, and the part
    of that target for one step. See `allowance`.
    `yielding_tokens`: prefill of a class that yields; None: unlimited, as no class above one is active.
    """

    rank: int
    prefill_tokens: int
    longest_ns: int | None = None
    itl_rank: int | None = None
    itl_target_ns: int | None = None
    yielding_tokens: int | None = None


class StepTimeLimiter:
    """Derives the `StepLimits` of each step from the classes' targets and the cost model."""

    def __init__(
        self,
        classes: Sequence[ServiceClass],
        step_tokens: int,
        longest_ns: int,
        cost_model: StepCostModel,
        class_activity: ClassActivity,
    ) -> None:
        self._classes = classes
        self._step_tokens = step_tokens
        self._longest_ns = longest_ns
        self._cost_model = cost_model
        self._activity = class_activity

    def limits(self, now_ns: int, decode: StepWork, decoding: Sequence[bool], micro_batches: int = 1) -> StepLimits:
        """The limits of a step.

        `decode`: the work of one token for each running request, which every step has.
        `decoding`: by rank, whether the class has requests in decode. `micro_batches`: steps between two tokens of one.
        """
        rank, prefill_tokens = self._first_token_limit(now_ns, decode)
        targets = [
            (service_class.itl_target_ms * 1_000_000 // micro_batches, rank)
            for rank, service_class in enumerate(self._classes)
            if service_class.itl_target_ms is not None and decoding[rank]
        ]
        itl_target_ns, itl_rank = min(targets, default=(None, None))
        yielding_tokens = self._yielding_limit(now_ns, decode)
        return StepLimits(rank, prefill_tokens, self._longest_ns, itl_rank, itl_target_ns, yielding_tokens)

    def _yielding_limit(self, now_ns: int, decode: StepWork) -> int | None:
        """A prompt of a higher class that arrives waits for the end of the step: while such a class is active, prefill
        of one that yields prolongs steps to `YIELDING_FACTOR` times their decodes."""
        yielding = [rank for rank, each in enumerate(self._classes) if each.yields]
        if not yielding or not any(self._activity.is_active(rank, now_ns) for rank in range(yielding[-1])):
            return None
        target_ns = int(YIELDING_FACTOR * self._cost_model.predict_ns(decode))
        high = self._step_tokens
        return self._cost_model.token_budget(target_ns, decode, low=min(BLOCK_TOKENS, high), high=high)

    def _first_token_limit(self, now_ns: int, decode: StepWork) -> tuple[int, int]:
        """The rank below which prefill is limited, and the limit in tokens. Without a target: the lowest rank.

        A first token waits for the rest of the current step, then for one or two steps of its own prompt, plus the
        overhead of a busy machine. While a class with a target is active, steps of the classes below take a fraction
        of that target. Short steps cost throughput, so while the class is inactive a step may take the whole target.
        It may never take longer, or the class's next request misses its target because of that single step. The loss
        of throughput is then small: where steps are that slow, most of their time does not depend on their size.
        """
        limits = [
            (service_class.ttft_target_ms * 1_000_000 // self._steps_to_first_token(rank, now_ns), rank)
            for rank, service_class in enumerate(self._classes)
            if service_class.ttft_target_ms is not None
        ]
        if not limits:
            return len(self._classes) - 1, self._step_tokens
        target_ns, rank = min(limits)
        high = self._step_tokens
        return rank, self._cost_model.token_budget(target_ns, decode, low=min(BLOCK_TOKENS, high), high=high)

    def _steps_to_first_token(self, rank: int, now_ns: int) -> int:
        return STEPS_TO_FIRST_TOKEN if self._activity.is_active(rank, now_ns) else 1


class StepSizeBackoff:
    """The maximum number of tokens in a step, halved when the device runs out of memory and doubled again later.

    The planner gives each running request one token even where that exceeds the limit.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._steps = 0
        self.tokens = max_tokens

    def lower(self, step_tokens: int) -> None:
        """The device had no memory for a step of `step_tokens` tokens."""
        self.tokens = max(1, min(self.tokens, step_tokens) // 2)
        self._steps = 0

    def record_step(self) -> None:
        """The device had memory for a step."""
        if self.tokens == self._max_tokens:
            return
        self._steps += 1
        if self._steps == RECOVERY_STEPS:
            self.tokens = min(2 * self.tokens, self._max_tokens)
            self._steps = 0
