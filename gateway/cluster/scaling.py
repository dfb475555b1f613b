"""How many workers a group needs: a function of observed load, with delays in both directions.

As Kubernetes' HorizontalPodAutoscaler with its stabilisation windows: the group grows to the least that was needed at
all times of `up_delay_s`, and shrinks to the most that was needed at any time of `down_delay_s`. To shrink, the load
must fit with a margin, so that a load at the edge of a number does not change it back and forth. It follows that the
group does not shrink within `down_delay_s` after it has grown, nor grow within `up_delay_s` after it has shrunk.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from gateway.cluster.cluster_file import Scaling

MARGIN = 0.8
"""Share of a worker's target that remaining workers may be loaded with after the group has shrunk."""
SLACK_S = 2.0
"""A window is covered by samples that begin this much after it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The load of a group at a time. `requests`: running and waiting, of all its workers. `wait_s`: the predicted wait
    at its best worker. `workers`: those that take requests."""

    at_s: float
    workers: int
    requests: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Demand:
    """Workers that a load needs; `with_margin`: so that they are not at their targets."""

    at_s: float
    needed: int
    with_margin: int


def demand_of(scaling: Scaling, samples: Sequence[Sample]) -> Demand:
    """The demand of the mean of some samples, at the time of the last one."""
    requests = sum(each.requests for each in samples) / len(samples)
    wait_s = sum(each.wait_s for each in samples) / len(samples)
    last = samples[-1]
    needed = ceil(requests / scaling.target_requests - 1e-9)
    with_margin = ceil(requests / (MARGIN * scaling.target_requests) - 1e-9)
    by_wait = last.workers * wait_s / scaling.target_wait_s
    if by_wait > last.workers:
        needed = max(needed, ceil(by_wait - 1e-9))
    if by_wait > MARGIN * last.workers:
        with_margin = max(with_margin, last.workers)  # a wait near its target: no worker is superfluous
    return Demand(last.at_s, needed, max(needed, with_margin))


def decide(scaling: Scaling, demands: Sequence[Demand], current: int, now_s: float, bounds: tuple[int, int]) -> int:
    """The number of workers from now on. `demands`: by time. `bounds`: the least and the most."""
    least, most = bounds
    current = min(max(current, least), most)
    rising = _window(demands, now_s, scaling.up_delay_s)
    if rising and (needed := min(each.needed for each in rising)) > current:
        return min(needed, most)
    falling = _window(demands, now_s, scaling.down_delay_s)
    if falling and (needed := max(each.with_margin for each in falling)) < current:
        return max(needed, least)
    return current


def _window(demands: Sequence[Demand], now_s: float, seconds: float) -> Sequence[Demand]:
    """The demands of the last seconds; none where they do not cover them."""
    if not demands or demands[0].at_s > now_s - seconds + SLACK_S:
        return () if seconds > 0 or not demands else demands[-1:]
    return [each for each in demands if each.at_s >= now_s - seconds] or demands[-1:]


class Scaler:
    """The policy of one group, with what it remembers of the load."""

    def __init__(self, scaling: Scaling, least: int, most: int) -> None:
        self._scaling = scaling
        self._bounds = least, most
        self._samples: deque[Sample] = deque()
        self._demands: deque[Demand] = deque()
        self.workers = least

    def observe(self, sample: Sample) -> int:
        """Take in the load of now. Returns the number of workers from now on."""
        now_s = sample.at_s
        self._samples.append(sample)
        while self._samples[0].at_s < now_s - self._scaling.look_back_s:
            self._samples.popleft()
        self._demands.append(demand_of(self._scaling, self._samples))
        kept_s = max(self._scaling.up_delay_s, self._scaling.down_delay_s) + SLACK_S
        while self._demands[0].at_s < now_s - kept_s:
            self._demands.popleft()
        self.workers = decide(self._scaling, self._demands, self.workers, now_s, self._bounds)
        return self.workers
