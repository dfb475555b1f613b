"""Replicas of a model as they are simulated, and a window of traffic played on them."""

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

from engine.config import BLOCK_TOKENS
from engine.planning.outcome import Outcome, class_outcomes
from engine.planning.step_times import LeastTimes, MeteredTimes, TimeModel
from engine.planning.targets import Target
from engine.planning.traffic import Traffic, Window
from engine.request import ServiceClass
from engine.simulation.fleet import Fleet
from engine.simulation.fleet_shape import FleetShape
from engine.workers.replica_choice import routing_policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """`replicas` of a model. The fields from `num_blocks` to `windows` are of each: see `FleetShape`."""

    replicas: int
    times: TimeModel
    least: LeastTimes
    num_blocks: int
    max_running: int
    step_tokens: int
    chunk_tokens: int
    max_model_len: int
    classes: tuple[ServiceClass, ...]
    max_wait_ms: Mapping[str, int]
    windows: tuple[int | None, ...] = ()
    noise: tuple[float, ...] = ()
    request_ns: int = 0

    def sequence_blocks(self, tokens: float) -> float:
        """Blocks of a sequence of this length: of each group of layers, for as much of it as their window has."""
        kept = (tokens if window is None else min(tokens, window) for window in (None, *self.windows))
        return sum(kept) / BLOCK_TOKENS

    def of(self, replicas: int) -> Self:
        """The same with another number of replicas."""
        return replace(self, replicas=replicas)

    def shape(self, times: MeteredTimes) -> FleetShape:
        """As `engine.simulation.fleet` simulates it."""
        return FleetShape(
            speeds=(1.0,) * self.replicas,
            num_blocks=self.num_blocks,
            max_running=self.max_running,
            step_tokens=self.step_tokens,
            chunk_tokens=self.chunk_tokens,
            max_model_len=self.max_model_len,
            windows=self.windows,
            classes=self.classes,
            max_wait_ns={name: 1_000_000 * bound for name, bound in self.max_wait_ms.items()},
            device=times,
            prior=self.times.prior,
            noise=self.noise or (1.0,),
            request_ns=self.request_ns,
        )


class _Judge:
    """Ends a run that is certain to miss a target: of the requests that arrive from `start_ns` on and before `end_ns`,
    too many are late or refused. `most`: as many as there can be, by class."""

    def __init__(
        self, fleet: Fleet, targets: Mapping[str, Target], most: Mapping[str, int], start_ns: int, end_ns: int
    ) -> None:
        self._fleet, self._targets, self._most = fleet, targets, most
        self._start_ns, self._end_ns = start_ns, end_ns
        self._late: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        self._seen = self._seen_refused = 0
        self.failed = False

    def __call__(self) -> bool:
        fleet = self._fleet
        for each in fleet.served[self._seen :]:
            bound = self._targets.get(each.service_class, Target()).ttft_p99_ms
            if bound is not None and self._counts(each.at_ns) and each.ttft_ns > 1e6 * bound:
                self._add(self._late, each.service_class, 0.01)
        self._seen = len(fleet.served)
        for refused in fleet.refused[self._seen_refused :]:
            share = self._targets.get(refused.service_class, Target()).refused_share
            if share is not None and self._counts(refused.at_ns):
                self._add(self._refused, refused.service_class, share)
        self._seen_refused = len(fleet.refused)
        return self.failed

    def _counts(self, at_ns: int) -> bool:
        return self._start_ns <= at_ns < self._end_ns

    def _add(self, counts: dict[str, int], name: str, share: float) -> None:
        counts[name] = counts.get(name, 0) + 1
        self.failed |= counts[name] > share * self._most.get(name, 0) + 1


def simulate(
    deployment: Deployment,
    traffic: Traffic,
    window: Window,
    seed: int = 0,
    stop_at: Mapping[str, Target] | None = None,
) -> Outcome:
    """Play a window of traffic. `stop_at`: targets; the run ends early once it is certain to miss one.

    Equal arguments give equal outcomes.
    """
    classes = {each.name: each for each in deployment.classes}
    sessions = traffic.draw(window, classes, seed)
    times = MeteredTimes(deployment.times, deployment.least)
    fleet = Fleet(deployment.shape(times), lambda random: routing_policy("predicted", random), seed)
    warm_ns, end_ns = round(1e9 * window.warm_s), round(1e9 * (window.warm_s + window.seconds))
    judge = None
    if stop_at is not None:
        # A session that begins in the warm-up has turns after it.
        most = {name: sum(len(each.turns) for each in sessions if each.service_class.name == name) for name in classes}
        judge = _Judge(fleet, stop_at, most, warm_ns, end_ns)
    with _without_collection():
        fleet.play(sessions, until=judge or (lambda: False))
    served = [each for each in fleet.served if warm_ns <= each.at_ns < end_ns]
    refused = [each for each in fleet.refused if warm_ns <= each.at_ns < end_ns]
    busy_ns = sum(worker.busy_ns for worker in fleet.workers)
    blocks = fleet.workers[0].pool.num_blocks
    return Outcome(
        replicas=deployment.replicas,
        seconds=window.seconds,
        classes=class_outcomes(served, refused, traffic.service_classes),
        prompt_tokens=sum(each.prompt_tokens for each in served),
        cached_tokens=sum(each.cached_tokens for each in served),
        answer_tokens=sum(each.answer_tokens for each in served),
        too_long=sum(each.too_long for each in refused),
        preemptions=sum(each.preemptions for each in served),
        peak_kv_share=max(worker.peak_blocks for worker in fleet.workers) / blocks,
        busy_share=min(busy_ns / (deployment.replicas * max(fleet.events.now_ns, 1)), 1.0),
        busy_ns=busy_ns,
        least_ns=times.least_ns,
        steps=times.steps,
        excesses=times.excesses,
        stopped=judge is not None and judge.failed,
    )


@contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage collection in the block: a run makes few cycles, and many objects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
