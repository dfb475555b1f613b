"""Metrics of drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.scheduling.stats import DraftStats, SpeculationStats
from engine.speculation.policy import StepOutcome

MEAN_STEPS = 64
"""Steps in the moving average of the depth."""
MEAN_DRAFTS = 1024
"""Drafts in the moving average of the acceptance rate."""


@dataclass(slots=True)
class _Count:
    depth: float = 0.0
    proposed: int = 0
    accepted: int = 0
    latest_proposed: float = 0.0
    latest_accepted: float = 0.0

    def add(self, drafts: int, accepted: int) -> None:
        self.proposed += drafts
        self.accepted += accepted
        keep = max(1.0 - drafts / MEAN_DRAFTS, 0.0)
        self.latest_proposed = keep * self.latest_proposed + drafts
        self.latest_accepted = keep * self.latest_accepted + accepted


@dataclass(slots=True)
class DraftTally:
    """Counts drafts by proposer and class. One thread writes, any may read."""

    _counts: dict[tuple[str, int], _Count] = field(default_factory=dict)
    _drafting_ns: dict[str, int] = field(default_factory=dict)

    def observe(self, outcome: StepOutcome) -> None:
        """Record a completed step. O(its rows with drafts)."""
        deepest: dict[tuple[str, int], int] = {}
        for verified in outcome.verified:
            key = verified.proposer, verified.rank
            if key not in self._counts:
                self._counts = {**self._counts, key: _Count()}  # another thread may be reading the old one
            self._counts[key].add(verified.drafts, verified.accepted)
            deepest[key] = max(verified.drafts, deepest.get(key, 0))
        for key, count in self._counts.items():
            count.depth += (deepest.get(key, 0) - count.depth) / MEAN_STEPS
        for drafting in outcome.drafting:
            spent_ns = self._drafting_ns.get(drafting.proposer, 0) + drafting.elapsed_ns
            self._drafting_ns = {**self._drafting_ns, drafting.proposer: spent_ns}

    def stats(self, classes: Sequence[str], saved_ns: int) -> SpeculationStats:
        """The metrics. `classes`: the names of the classes, by rank. Thread-safe."""
        drafts = tuple(
            DraftStats(
                proposer=proposer,
                service_class=classes[rank],
                depth=count.depth,
                proposed_total=count.proposed,
                accepted_total=count.accepted,
                acceptance=count.latest_accepted / max(count.latest_proposed, 1.0),
            )
            for (proposer, rank), count in self._counts.items()
        )
        return SpeculationStats(saved_ns, self._drafting_ns, drafts)
