"""Cost of one long prompt to all others between two steps: `python -m benchmarks.host_part [--rounds N]`.

200 requests decode. In the same engine one of 120,000 tokens comes, waits, forks, ends and is aborted. The figure is
the time of `schedule` plus `commit` of each step, in which no device is waited for, and of an abort before it. The
prompt's hashes are made before it is submitted, as `Engine` does.

CPU time is counted. Equal calls give equal plans, so a case runs in several rounds, and the fastest time of each of its
steps counts, which leaves out other processes. Promise: no step takes more than 1 ms longer than one without the long
prompt.
"""

import gc
import math
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable

from engine.config import BLOCK_TOKENS, SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.memory.request_hashes import extend_hashes
from engine.request import Request, SamplingParams, ServiceClass
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.simulation import make_request

PREMIUM, STANDARD = ServiceClass("premium", priority=0), ServiceClass("standard", priority=10)
STREAMS = 200
STREAM_TOKENS = 512
LONG_TOKENS = 120_000
CACHED_TOKENS = 100_000
CHUNK_TOKENS = 2048
CHOICES = 32
STEPS = 40
LONG_BLOCKS = LONG_TOKENS // BLOCK_TOKENS + 1
STREAM_BLOCKS = STREAMS * (STREAM_TOKENS // BLOCK_TOKENS + 30)
PREFILL_STEPS = LONG_TOKENS // (CHUNK_TOKENS - STREAMS) + 1
PROMISE_MS = 1.0


class Bench:
    """A scheduler whose streams decode, and the time of each step since `begin`, in milliseconds."""

    def __init__(self, spare_blocks: int, preemptions: int = 32) -> None:
        config = SchedulerConfig(
            max_running=256,
            step_tokens=CHUNK_TOKENS,
            chunk_tokens=CHUNK_TOKENS,
            classes=(PREMIUM, STANDARD),
            tenant_preemptions=preemptions,
        )
        cache = KVCacheManager(BlockPool(STREAM_BLOCKS + spare_blocks))
        self.scheduler = Scheduler(config, cache, 131_072)
        self.steps_ms: list[float] = []
        self._number = 0
        self._spent_s = 0.0
        for number in range(STREAMS):
            self.submit([number * 31 + at * 7 for at in range(STREAM_TOKENS)], STANDARD, 100_000)
        while any(request.computed < request.prompt_tokens for request in (*self.scheduler.running,)) or (
            self.scheduler.waiting
        ):
            self.step()

    def submit(
        self, tokens: list[int], service_class: ServiceClass, answer: int, fork_of: Request | None = None
    ) -> Request:
        self._number += 1
        request = make_request(
            str(self._number),
            tokens,
            arrival=self._number,
            params=SamplingParams(max_tokens=answer, ignore_eos=True),
            tenant=service_class.name,
            salt=service_class.name.encode(),
            service_class=service_class,
            fork_of=fork_of,
        )
        extend_hashes(request, request.prompt_tokens // BLOCK_TOKENS)
        self._timed(lambda: self.scheduler.add(request, self._now_ns))
        return request

    def submit_long(self, answer: int = 100_000, choices: int = 1, service_class: ServiceClass = PREMIUM) -> Request:
        tokens = [7] * CACHED_TOKENS + [at * 13 % 50_000 for at in range(LONG_TOKENS - CACHED_TOKENS)]
        parent = self.submit(tokens, service_class, answer)
        for _ in range(choices - 1):
            self.submit(tokens, service_class, answer, parent)
        return parent

    def fill_cache(self) -> None:
        """Put the first `CACHED_TOKENS` tokens of the prompt into the prefix cache."""
        self.submit([7] * CACHED_TOKENS + [1], PREMIUM, 1)
        self.run(PREFILL_STEPS + 8)

    def abort(self, request: Request) -> None:
        self._timed(lambda: self.scheduler.abort(request.id, self._now_ns))

    def begin(self) -> None:
        gc.collect()
        gc.disable()
        self.steps_ms.clear()
        self._spent_s = 0.0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        plan: StepPlan | None = None

        def schedule() -> None:
            nonlocal plan
            plan = self.scheduler.schedule(self._now_ns, limits=self.scheduler.step_limits(self._now_ns))

        self._timed(schedule)
        if plan is not None:
            launched = plan
            result = StepResult(tuple(RowResult(token=1 if row.samples else None) for row in launched.rows))
            self._timed(lambda: self.scheduler.commit(launched, result, elapsed_ns=10_000_000))
        self.steps_ms.append(self._spent_s * 1e3)
        self._spent_s = 0.0

    @property
    def _now_ns(self) -> int:
        return len(self.steps_ms) * 10_000_000

    def _timed(self, work: Callable[[], object]) -> None:
        started = time.thread_time()
        work()
        self._spent_s += time.thread_time() - started


def alone() -> list[float]:
    bench = Bench(LONG_BLOCKS + 500)
    bench.begin()
    bench.run(STEPS)
    return bench.steps_ms


def arriving(cached: bool) -> list[float]:
    """It is let in, gets its blocks, and computes its prompt."""
    bench = Bench(2 * LONG_BLOCKS + 500)
    if cached:
        bench.fill_cache()
    bench.begin()
    bench.submit_long()
    bench.run(STEPS if cached else PREFILL_STEPS + 16)
    return bench.steps_ms


def held_back(cached: bool, preemptions: int = 0) -> list[float]:
    """There is no room without victims, and its tenant may have fewer than that takes."""
    bench = Bench(LONG_BLOCKS - 500 if cached else 500, preemptions)
    if cached:
        bench.fill_cache()
    bench.begin()
    bench.submit_long()
    bench.run(STEPS)
    return bench.steps_ms


def forking() -> list[float]:
    """Its prompt is computed, and 31 more choices begin."""
    bench = Bench(LONG_BLOCKS + 1000)
    bench.submit_long(choices=CHOICES)
    bench.run(PREFILL_STEPS)
    bench.begin()
    bench.run(STEPS)
    assert len(bench.scheduler.running) == STREAMS + CHOICES
    return bench.steps_ms


def ending(choices: int) -> list[float]:
    bench = Bench(LONG_BLOCKS + 1000)
    bench.submit_long(answer=40, choices=choices)
    while bench.scheduler.running.ranks[0] or bench.scheduler.waiting:
        if len(bench.scheduler.running.ranks[0]) == choices and not bench.scheduler.waiting and gc.isenabled():
            bench.begin()
        bench.step()
    bench.run(16)
    return bench.steps_ms


def aborted() -> list[float]:
    bench = Bench(LONG_BLOCKS + 500)
    long = bench.submit_long()
    bench.run(PREFILL_STEPS + 8)
    bench.begin()
    bench.abort(long)
    bench.run(STEPS)
    return bench.steps_ms


def preempting() -> list[float]:
    """It takes victims, gets what they give back, and computes its prompt."""
    bench = Bench(LONG_BLOCKS - 500)
    bench.begin()
    bench.submit_long()
    bench.run(STEPS)
    return bench.steps_ms


CASES: dict[str, Callable[[], list[float]]] = {
    "without it": alone,
    "arriving": lambda: arriving(cached=False),
    "arriving, 100k cached": lambda: arriving(cached=True),
    "arriving, with victims": preempting,
    "held back, no budget": lambda: held_back(cached=False),
    "held back, over 32 victims": lambda: held_back(cached=False, preemptions=32),
    "held back, 100k cached": lambda: held_back(cached=True),
    f"forking, n={CHOICES}": forking,
    "ending": lambda: ending(choices=1),
    f"ending, n={CHOICES}": lambda: ending(choices=CHOICES),
    "aborted": aborted,
}


def measure(case: Callable[[], list[float]], rounds: int) -> list[float]:
    """Of each step the fastest."""
    best: list[float] = []
    for _ in range(rounds):
        steps_ms = case()
        gc.enable()
        best = [min(pair) for pair in zip(best or [math.inf] * len(steps_ms), steps_ms, strict=True)]
    return best


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(
        f"{STREAMS} streams, one prompt of {LONG_TOKENS} tokens; schedule + commit, ms; the fastest of {rounds} rounds"
    )
    print("| the long prompt is | median | worst | over the median without it |\n|---|---|---|---|")
    without_ms = 0.0
    for name, case in CASES.items():
        steps_ms = measure(case, rounds)
        without_ms = without_ms or statistics.median(steps_ms)
        worst_ms = max(steps_ms)
        print(
            f"| {name} | {statistics.median(steps_ms):.2f} | {worst_ms:.2f} | {worst_ms - without_ms:+.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
