"""Runs many seeds on several processes, up to a limit of seeds, steps or time, or until the first failure."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import count
from multiprocessing import get_context
from typing import Unpack

from engine.simulation.patterns import ModelOptions, traffic_from_seed
from engine.simulation.report import SimulationFailure, SimulationReport
from engine.simulation.simulator import simulate_traffic
from engine.simulation.traffic import Traffic

SEEDS_A_TASK = 10

MakeTraffic = Callable[[int], Traffic]
"""Makes the traffic of a seed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a campaign; the first one reached ends it. None: unlimited."""

    seeds: int | None = None
    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CampaignReport:
    """Totals over the seeds from `first_seed` on, and the first failure, if any.

    `trace_hash`: covers the traces of all seeds in order. Equal limits on seeds or steps give equal hashes, on any
    number of processes. `elapsed_s`: wall time.
    """

    first_seed: int
    seeds: int
    steps: int
    requests: int
    preemptions: int
    cached_tokens: int
    failures: int
    wasted_rows: int
    accepted_drafts: int
    rejected_drafts: int
    adapter_loads: int
    fetched_blocks: int
    virtual_s: float
    faults: dict[str, int]
    patterns: dict[str, int]
    elapsed_s: float
    trace_hash: str
    failed_seed: int | None = None
    failure: str = ""

    def __str__(self) -> str:
        lines = [
            f"{self.seeds} seeds from {self.first_seed} on: {self.steps} steps, {self.requests} requests, "
            f"{self.virtual_s:.0f} s of virtual time",
            f"{self.preemptions} preemptions, {self.cached_tokens} cached tokens, {self.failures} requests failed, "
            f"{self.wasted_rows} rows wasted, {self.accepted_drafts} drafts accepted, {self.rejected_drafts} rejected, "
            f"{self.adapter_loads} adapters loaded, {self.fetched_blocks} blocks fetched",
            "faults: " + ", ".join(f"{number} {name}" for name, number in self.faults.items()),
            "steps by pattern: " + ", ".join(f"{number} {name}" for name, number in self.patterns.items()),
            f"{self.elapsed_s:.1f} s, {self.steps / max(self.elapsed_s, 1e-9):.0f} steps/s",
            f"trace {self.trace_hash}",
        ]
        if self.failed_seed is not None:
            lines.append(f"seed {self.failed_seed} FAILED: {self.failure}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The report of a seed, or its failure."""

    seed: int
    report: SimulationReport | None
    failure: str = ""


def run_campaign(
    first_seed: int,
    limits: Limits,
    jobs: int = 1,
    **options: Unpack[ModelOptions],
) -> CampaignReport:
    """Run seeds in order until a limit is reached or one fails. Only whole seeds count.

    Seeds after the one that fails or reaches the limit do not count, even if another process has run them already.
    """
    started_s = time.monotonic()
    make = partial(traffic_from_seed, **options)
    outcomes = _in_turn(first_seed, limits, make) if jobs == 1 else _in_parallel(first_seed, limits, jobs, make)
    faults: Counter[str] = Counter()
    patterns: Counter[str] = Counter()
    reports: list[SimulationReport] = []
    trace, steps = sha256(), 0
    failed: _Outcome | None = None
    for outcome in outcomes:
        if outcome.report is None:
            failed = outcome
            break
        reports.append(outcome.report)
        steps += outcome.report.steps
        trace.update(outcome.report.trace_hash.encode())
        faults.update(outcome.report.faults)
        patterns[outcome.report.pattern] += outcome.report.steps
        if _reached(limits, len(reports), steps, time.monotonic() - started_s):
            break
    outcomes.close()
    return CampaignReport(
        first_seed=first_seed,
        seeds=len(reports),
        steps=steps,
        requests=sum(report.requests for report in reports),
        preemptions=sum(report.preemptions for report in reports),
        cached_tokens=sum(report.cached_tokens for report in reports),
        failures=sum(report.failures for report in reports),
        wasted_rows=sum(report.wasted_rows for report in reports),
        accepted_drafts=sum(report.accepted_drafts for report in reports),
        rejected_drafts=sum(report.rejected_drafts for report in reports),
        adapter_loads=sum(report.adapter_loads for report in reports),
        fetched_blocks=sum(report.fetched_blocks for report in reports),
        virtual_s=sum(report.virtual_ns for report in reports) / 1e9,
        faults=dict(sorted(faults.items())),
        patterns=dict(sorted(patterns.items())),
        elapsed_s=time.monotonic() - started_s,
        trace_hash=trace.hexdigest(),
        failed_seed=None if failed is None else failed.seed,
        failure="" if failed is None else failed.failure,
    )


def _reached(limits: Limits, seeds: int, steps: int, elapsed_s: float) -> bool:
    """Whether a limit is reached. Without limits, one seed is run."""
    if limits == Limits():
        return seeds >= 1
    return (
        (limits.seeds is not None and seeds >= limits.seeds)
        or (limits.steps is not None and steps >= limits.steps)
        or (limits.seconds is not None and elapsed_s >= limits.seconds)
    )


def _outcome(seed: int, make: MakeTraffic) -> _Outcome:
    try:
        return _Outcome(seed, simulate_traffic(make(seed)))
    except SimulationFailure as failure:
        return _Outcome(seed, None, str(failure))


def _outcomes(seeds: range, make: MakeTraffic) -> list[_Outcome]:
    return [_outcome(seed, make) for seed in seeds]


def _tasks(first_seed: int, limits: Limits) -> Iterator[range]:
    """The seeds in tasks of `SEEDS_A_TASK`."""
    end = None if limits.seeds is None else first_seed + limits.seeds
    for start in count(first_seed, SEEDS_A_TASK):
        stop = start + SEEDS_A_TASK if end is None else min(start + SEEDS_A_TASK, end)
        if start >= stop:
            return
        yield range(start, stop)


def _in_turn(first_seed: int, limits: Limits, make: MakeTraffic) -> Generator[_Outcome]:
    for seeds in _tasks(first_seed, limits):
        yield from (_outcome(seed, make) for seed in seeds)


def _in_parallel(first_seed: int, limits: Limits, jobs: int, make: MakeTraffic) -> Generator[_Outcome]:
    """Outcomes in the order of the seeds. Some tasks run ahead of the one whose outcome is awaited."""
    tasks = _tasks(first_seed, limits)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        pending: list[Future[list[_Outcome]]] = []
        try:
            while True:
                while len(pending) < 2 * jobs and (seeds := next(tasks, None)) is not None:
                    pending.append(pool.submit(_outcomes, seeds, make))
                if not pending:
                    return
                yield from pending.pop(0).result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
