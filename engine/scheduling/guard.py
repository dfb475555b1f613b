"""Keeps steps short enough for the class with the tightest target for its first token."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS
from engine.request import ServiceClass
from engine.scheduling.cost import StepCostModel, StepWork

STEPS_TO_FIRST_TOKEN = 10
"""So many steps of the longest kind fit the target of a class for its first token."""

TARGET_MEMORY_NS = 60 * 1_000_000_000
"""How long after its last request a class's target still binds the steps of all."""


@dataclass(frozen=True, slots=True)
class StepGuard:
    """The classes below `rank` may have at most `prefill_tokens` of prefill each in a step."""

    rank: int
    prefill_tokens: int


class TargetWatch:
    """Remembers when each class last had a request, and bounds the steps of those below it accordingly."""

    def __init__(self, classes: Sequence[ServiceClass], step_tokens: int, cost_model: StepCostModel) -> None:
        self._classes = classes
        self._step_tokens = step_tokens
        self._cost_model = cost_model
        self._last_arrival_ns: list[int | None] = [None for _ in classes]

    def note_arrival(self, rank: int, now_ns: int) -> None:
        self._last_arrival_ns[rank] = now_ns

    def guard(self, now_ns: int, decode: StepWork) -> StepGuard | None:
        """The bound for a step that has the work of `decode` in any case.

        None where no class with a target has had a request for `TARGET_MEMORY_NS`: small steps cost throughput, which
        nobody should pay for a class that does not come. A first token waits for the rest of the step under way, and
        then takes a step or two of its own prompt and what a busy machine adds; so a step of the classes below gets a
        share of the target.
        """
        guarded = [
            (each.ttft_target_ms, rank)
            for rank, each in enumerate(self._classes)
            if each.ttft_target_ms is not None
            and (last_ns := self._last_arrival_ns[rank]) is not None
            and now_ns - last_ns < TARGET_MEMORY_NS
        ]
        if not guarded:
            return None
        target_ms, rank = min(guarded)
        most = self._step_tokens
        target_ns = target_ms * 1_000_000 // STEPS_TO_FIRST_TOKEN
        tokens = self._cost_model.token_budget(target_ns, decode, low=min(BLOCK_TOKENS, most), high=most)
        return StepGuard(rank, tokens)
