"""Runs simulations in several processes: each is a function of its arguments alone."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager
from multiprocessing import get_context
from types import TracebackType
from typing import NamedTuple, Self

from engine.planning.deployment import Deployment, simulate
from engine.planning.outcome import Outcome
from engine.planning.targets import Target
from engine.planning.traffic import Traffic, Window


class Run(NamedTuple):
    """The arguments of `simulate`."""

    deployment: Deployment
    traffic: Traffic
    window: Window
    seed: int = 0
    stop_at: Mapping[str, Target] | None = None


def _simulate(run: Run) -> Outcome:
    return simulate(*run)


class Runs(AbstractContextManager["Runs"]):
    """`jobs` processes, started at the first list of more than one run; with 1 all runs are in this process. The number
    changes no outcome."""

    def __init__(self, jobs: int | None = None) -> None:
        self._jobs = jobs or os.cpu_count() or 1
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def play(self, runs: Sequence[Run]) -> list[Outcome]:
        """The outcomes in the order of the runs."""
        if self._jobs == 1 or len(runs) < 2:
            return [simulate(*run) for run in runs]
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._jobs, mp_context=get_context("spawn"))
        return list(self._pool.map(_simulate, runs))
