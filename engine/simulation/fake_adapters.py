"""Loads adapters in virtual time, some late and some never."""

from dataclasses import dataclass
from random import Random

from engine.request import TokenDelta
from engine.scheduling import Scheduler
from engine.scheduling.adapter_queue import AdapterLoad
from engine.simulation.fake_executor import FakeExecutor
from engine.simulation.traffic import TICK_NS


@dataclass(frozen=True, slots=True)
class _Loading:
    load: AdapterLoad
    ends_ns: int
    fails: bool


class FakeAdapterLoader:
    """`loaded`, `failed`: adapters so far."""

    def __init__(self, seed: int, scheduler: Scheduler, executor: FakeExecutor) -> None:
        self.loaded = self.failed = 0
        self._rng = Random(f"adapters of {seed}")
        self._scheduler = scheduler
        self._executor = executor
        self._longest = self._rng.choice((0, 2, 30))
        self._failing = self._rng.choice((0.0, 0.0, 0.1))
        self._loading: list[_Loading] = []

    @property
    def ends_ns(self) -> list[int]:
        """When the loads in progress end."""
        return [loading.ends_ns for loading in self._loading]

    def update(self, now_ns: int) -> list[TokenDelta]:
        """End the loads that are due, and begin others. Returns the last deltas of requests that failed."""
        deltas = []
        for loading in [loading for loading in self._loading if loading.ends_ns <= now_ns]:
            self._loading.remove(loading)
            deltas += self._end(loading)
        deltas += self._scheduler.adapters.expire(now_ns)
        for load in self._scheduler.adapters.update(now_ns):
            self._executor.put_adapter(load.slot, None)  # what was there is overwritten
            ends_ns = now_ns + self._rng.randint(0, self._longest) * TICK_NS
            self._loading.append(_Loading(load, ends_ns, self._rng.random() < self._failing))
        return deltas

    def _end(self, loading: _Loading) -> list[TokenDelta]:
        digest = loading.load.source.digest
        if loading.fails:
            self.failed += 1
            return self._scheduler.adapters.fail(digest)
        self.loaded += 1
        self._executor.put_adapter(loading.load.slot, digest)
        self._scheduler.adapters.loaded(digest)
        return []
