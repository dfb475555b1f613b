"""The recent samples and the state of the server."""

from collections import deque

from gateway.tools.top.sample import Between, Sample
from gateway.tools.top.view import View, view_of

OF_LATE_S = 30.0
"""Window of latencies and shares, in seconds."""


class History:
    """The samples of the last `OF_LATE_S` seconds; a view needs two. `trouble`: why the newest sample is missing, since
    `trouble_since_s`."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()
        self.trouble = ""
        self.trouble_since_s = 0.0

    def answered(self, sample: Sample) -> None:
        if self.trouble:
            self._samples.clear()  # what was counted while it was away belongs to no interval
        self.trouble = ""
        self._samples.append(sample)
        while len(self._samples) > 2 and self._samples[1].at_s <= sample.at_s - OF_LATE_S:
            self._samples.popleft()

    def failed(self, reason: str, at_s: float) -> None:
        if not self.trouble:
            self.trouble_since_s = at_s
        self.trouble = reason

    def view(self) -> View | None:
        if len(self._samples) < 2:
            return None
        newest = self._samples[-1]
        return view_of(Between(self._samples[-2], newest), Between(self._samples[0], newest))
