"""Drafts from a small model with the same vocabulary, sampled with the target's noise."""

from collections.abc import Sequence
from typing import Protocol

from engine.request import Request
from engine.speculation.draft_memory import DraftMemory, DraftPlan
from engine.speculation.proposer import DraftWant


class Drafter(Protocol):
    """A draft model on its device, with KV memory that uses the target's block ids. The slots' spare blocks come after
    these.

    It samples with the sampling parameters, penalties and noise of the target. Where both models have the same
    distribution, they then sample the same token, at any temperature.
    """

    @property
    def catch_up_tokens(self) -> int:
        """Maximum tokens of a plan, over all requests, with which the model catches up."""
        ...

    def run(self, plan: DraftPlan) -> list[list[int]]:
        """Carry out a plan: the drafts of each of its rows. A row stops after a token that ends its request."""
        ...


class DraftModel:
    """A `Proposer` that runs a small model. `DraftMemory` tracks which content of the model's KV is valid."""

    def __init__(self, drafter: Drafter, *, num_blocks: int, num_slots: int, max_positions: int) -> None:
        """`max_positions`: the model's maximum context; it does not draft beyond it."""
        self._drafter = drafter
        self._memory = DraftMemory(num_blocks, num_slots, max_positions)

    @property
    def name(self) -> str:
        return "draft"

    @property
    def free(self) -> bool:
        return False

    def lag(self, request: Request) -> int:
        return self._memory.lag(request)

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        try:
            plan = self._memory.plan(wants, self._drafter.catch_up_tokens)
            drafts = self._drafter.run(plan) if plan.rows else []
            self._memory.commit(plan, drafts)
        except BaseException:
            self._memory.clear()
            raise
        proposed: list[Sequence[int]] = [()] * len(wants)
        for row, drawn in zip(plan.rows, drafts, strict=True):
            proposed[row.want] = drawn
        return proposed
