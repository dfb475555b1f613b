"""The command line of the simulation."""

import argparse
import multiprocessing
import os
from collections.abc import Iterator, Sequence

from tests.whole.clock import real_seconds
from tests.whole.known import SCENARIOS, SEEDS
from tests.whole.run import Outcome, run
from tests.whole.scenario import Scenario, as_source, draw
from tests.whole.shrink import as_test, shrink


def main(arguments: Sequence[str]) -> int:
    stated = _parser().parse_args(arguments)
    if stated.plants:
        from tests.whole.planted import search

        return search(stated.plants, stated.seeds)
    if stated.seed is not None:
        return max(_one(draw(seed), shrinking=stated.shrink) for seed in stated.seed)
    seeds = range(stated.first, stated.first + stated.seeds)
    scenarios: list[int | Scenario] = [*SCENARIOS, *SEEDS] if stated.known else []
    return _many([*scenarios, *seeds], stated.jobs, shrinking=stated.shrink)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.whole", description="Simulate the whole program, seed by seed."
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, nargs="+", help="these alone: scenarios and how they failed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: as many as cores)")
    parser.add_argument("--known", action="store_true", help="those that ever failed, first")
    parser.add_argument("--shrink", action="store_true", help="reduce the first that fails to a few lines")
    parser.add_argument(
        "--plants", nargs="*", metavar="NAME", help="plant bugs (all: '*') and see after how many seeds each is found"
    )
    return parser


def _one(scenario: Scenario, *, shrinking: bool) -> int:
    outcome = run(scenario)
    if outcome.failure is not None and shrinking:
        scenario = shrink(scenario, lambda each: run(each).failure)
        outcome = run(scenario)
    print(as_source(scenario.config))
    print(*map(as_source, scenario.actions), sep="\n")
    print(outcome.detail or "clean")
    print(f"{outcome.requests} requests, {outcome.events} events, {outcome.virtual_s:.6f} s of virtual time")
    if outcome.failure is not None:
        print(outcome.failure, as_test(scenario), sep="\n")
    return 0 if outcome.failure is None else 1


def _many(scenarios: Sequence[int | Scenario], jobs: int, *, shrinking: bool) -> int:
    began, failed = real_seconds(), []
    events = requests = 0
    virtual_s = 0.0
    for outcome in _outcomes(scenarios, jobs):
        events += outcome.events
        virtual_s += outcome.virtual_s
        requests += outcome.requests
        if outcome.failure is not None:
            failed.append(outcome)
            print(f"seed {outcome.scenario.seed}: {outcome.failure}", flush=True)
    taken_s = real_seconds() - began
    print(
        f"{len(scenarios)} runs, {len(failed)} failed: {requests} requests, {events} events, "
        f"{virtual_s:.0f} s of virtual time in {taken_s:.0f} s"
    )
    for outcome in failed[:3]:
        print(f"replay: python -m tests.whole --seed {outcome.scenario.seed} --shrink")
    if failed and shrinking:
        _one(failed[0].scenario, shrinking=True)
    return 1 if failed else 0


def _outcomes(scenarios: Sequence[int | Scenario], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(_run, scenarios)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_run, scenarios, chunksize=4)


def _run(scenario: int | Scenario) -> Outcome:
    return run(draw(scenario) if isinstance(scenario, int) else scenario)
