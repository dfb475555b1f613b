"""Whether a connected worker is heard of and makes progress."""

from collections.abc import Mapping

from engine.scheduling.stats import SchedulerStats

SILENT_SECONDS = 2.0
"""Time without any message after which a worker gets no new requests: it sends a heartbeat ten times a second."""
STALLED_SECONDS = 5.0
"""Time without a step, while requests run or wait, after which a worker gets no new requests of the model."""


class ReplicaHealth:
    """Times of a worker's last message, and of each model's last progress. In seconds of the callers' clock."""

    def __init__(self, now_s: float) -> None:
        self._heard_s = now_s
        self._steps: dict[str, int] = {}
        self._progressed_s: dict[str, float] = {}

    def on_message(self, now_s: float) -> None:
        """Any message has arrived."""
        self._heard_s = now_s

    def on_stats(self, stats: Mapping[str, SchedulerStats], now_s: float) -> None:
        """A heartbeat has arrived. A model without work has nothing to make progress with."""
        for model, each in stats.items():
            has_work = each.running + each.waiting > 0
            if not has_work or self._steps.get(model) != each.steps_total:
                self._steps[model] = each.steps_total
                self._progressed_s[model] = now_s

    def is_suspect(self, model: str, now_s: float) -> bool:
        """Whether the worker is silent, or stands still with requests of the model."""
        is_silent = now_s - self._heard_s > SILENT_SECONDS
        return is_silent or now_s - self._progressed_s.get(model, now_s) > STALLED_SECONDS
