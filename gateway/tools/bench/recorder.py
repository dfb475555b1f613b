"""Collects the outcomes of a load."""

from gateway.tools.bench.outcome import Outcome


class Recorder:
    """Invariant: each request is in `outcomes` or running."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self._begun = 0

    @property
    def under_way(self) -> int:
        return self._begun - len(self.outcomes)

    def begin(self) -> None:
        self._begun += 1

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
