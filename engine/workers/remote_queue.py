"""The expected queue of a model that another process computes."""

from collections.abc import Mapping

from engine.runtime.expected_queue import ExpectedQueue, QueueSpeed
from engine.runtime.wait_prediction import LoadReport


class RemoteQueue(ExpectedQueue):
    """Combines the worker's last report with what this process has reserved and submitted since: of its own requests
    it knows all at any time."""

    def __init__(self, ranks: Mapping[str, int], report: LoadReport) -> None:
        super().__init__(ranks, report.snapshot)
        self._report = report

    def speed(self, rank: int) -> QueueSpeed:
        report = self._report
        return QueueSpeed(report.cost, report.slowdown, report.corrections[rank])

    def on_report(self, report: LoadReport) -> None:
        """The worker's load has changed."""
        self._report = report
        self.update(report.snapshot, report.taken_in)
