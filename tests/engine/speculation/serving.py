"""Whole runs of requests in virtual time: prompts to prefill, a draft model that has to catch up, a device whose steps
take what those of half a billion parameters took on two cores.

All is real but the arithmetic: the scheduler, the steps and their order, the speculator, the draft model's memory. The
clock that they read is noisy; a run is judged by what its steps take in expectation, so that luck decides no test.
"""

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.traffic import make_jobs
from engine.config import SchedulerConfig
from engine.memory import KVCacheManager
from engine.memory.block_pool import BlockPool
from engine.request import Request, SamplingParams
from engine.runtime.step_loop import DeviceClock, StepLoop
from engine.runtime.watchdog import Watchdog
from engine.scheduling import RowResult, Scheduler, StepPlan, StepResult
from engine.scheduling.cost import StepCostModel
from engine.scheduling.plan import LaunchStats
from engine.simulation import make_request
from engine.speculation import DepthPolicy, DraftWant, Speculator
from engine.speculation.controller import DepthController
from engine.speculation.draft_memory import DraftMemory, DraftPlan

MOST = 8
ANSWER_TOKENS = 48
ACCEPTANCE = 0.7
NOISE = 0.05
"""Of times, relative."""
NUM_BLOCKS, NUM_SLOTS, WINDOW_TOKENS = 1024, 64, 1024
CATCH_UP_TOKENS = 256

STEP_MS = (
    (1, 50.0),
    (2, 52.0),
    (4, 62.0),
    (8, 82.0),
    (16, 112.0),
    (32, 172.0),
    (64, 290.0),
    (128, 520.0),
    (512, 1900.0),
)
"""A step's time by its tokens; in between on straight lines. Of the 0.5 B model in bf16, on two cores."""
FORWARD_MS, FORWARD_ROW_MS, CATCH_UP_TOKEN_MS = 5.0, 0.6, 0.4
"""A forward pass of the draft model: by itself, for each request in it, for each token that it catches up with."""


def step_ms(tokens: int) -> float:
    place = max(bisect_left(STEP_MS, (tokens, 0.0)), 1)
    (below, below_ms), (above, above_ms) = STEP_MS[place - 1 : place + 1]
    return below_ms + (above_ms - below_ms) * (tokens - below) / (above - below)


@dataclass(slots=True)
class Clock:
    """`now_ns` is what it shows; `expected_ms` what should have passed."""

    rng: random.Random
    now_ns: int = 1_000_000
    expected_ms: float = 0.0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def pass_ms(self, ms: float) -> None:
        self.expected_ms += ms
        self.now_ns += round(1e6 * ms * max(self.rng.gauss(1.0, NOISE), 0.5))


@dataclass(frozen=True, slots=True)
class Landed:
    result_of_step: StepResult

    def result(self) -> StepResult:
        return self.result_of_step


@dataclass(slots=True)
class Target:
    """An executor whose model says, at each position of a request, what the request's seed says."""

    clock: Clock
    async_depth: int = 0
    micro_batches: int = 1
    takes_drafts: bool = True
    launches: LaunchStats | None = None

    def execute(self, plan: StepPlan) -> Landed:
        self.clock.pass_ms(step_ms(plan.total_tokens))
        rows = []
        for request, _, _, samples, drafts in plan.rows:
            known = len(request.tokens)
            accepted = 0
            while accepted < len(drafts) and drafts[accepted] == token_at(request, known + accepted):
                accepted += 1
            rows.append(RowResult(token_at(request, known + accepted) if samples else None, accepted=accepted))
        return Landed(StepResult(tuple(rows)))


@dataclass(slots=True)
class Drafter:
    """A proposer whose model is right at a share `acceptance` of all places, the same in every run."""

    clock: Clock
    acceptance: float
    memory: DraftMemory = field(default_factory=lambda: DraftMemory(NUM_BLOCKS, NUM_SLOTS, WINDOW_TOKENS))
    name: str = "draft"
    free: bool = False
    made: int = 0
    """Drafts so far."""

    def lag(self, request: Request) -> int:
        return self.memory.lag(request)

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        plan = self.memory.plan(wants, CATCH_UP_TOKENS)
        proposed: list[Sequence[int]] = [()] * len(wants)
        drafts = [self._drafts(row.request, row.depth) for row in plan.rows]
        for row, drawn in zip(plan.rows, drafts, strict=True):
            proposed[row.want] = drawn
            self.made += len(drawn)
        self._pass_time(plan)
        self.memory.commit(plan, drafts)
        return proposed

    def _pass_time(self, plan: DraftPlan) -> None:
        if not plan.rows:
            return
        behind = sum(row.tokens - 1 for row in plan.rows)
        self.clock.pass_ms(FORWARD_MS + FORWARD_ROW_MS * len(plan.rows) + CATCH_UP_TOKEN_MS * behind)
        for place in range(1, max(row.depth for row in plan.rows)):
            self.clock.pass_ms(FORWARD_MS + FORWARD_ROW_MS * sum(row.depth > place for row in plan.rows))

    def _drafts(self, request: Request, depth: int) -> list[int]:
        known = len(request.tokens)
        return [
            token_at(request, place) + (random.Random(f"{request.seed} at {place}").random() >= self.acceptance)
            for place in range(known, known + depth)
        ]


def token_at(request: Request, place: int) -> int:
    return 10 + 2 * ((request.seed * 7919 + place * 104729) % 1000)


Policy = Callable[[StepCostModel], DepthPolicy]


class Server:
    """Serves runs of requests under a policy, one after another, and keeps what it has learnt between them."""

    def __init__(self, clock: Clock, policy_of: Policy, *, acceptance: float = ACCEPTANCE) -> None:
        self._clock = clock
        cache = KVCacheManager(BlockPool(NUM_BLOCKS), prefix_cache=False)
        self._scheduler = Scheduler(SchedulerConfig(max_running=NUM_SLOTS), cache, WINDOW_TOKENS)
        self.drafter = Drafter(clock, acceptance)
        speculator = Speculator([self.drafter], policy_of(self._scheduler.cost_model), clock.monotonic_ns)
        watchdog = Watchdog(60.0, lambda: None)
        self._steps = StepLoop(self._scheduler, Target(clock), DeviceClock(), watchdog, speculator)
        self._served = 0
        self.verified = 0
        """Drafts so far, of requests that have ended."""

    def run(self, number: int, concurrency: int, requests: int) -> float:
        """Tokens per second of a closed loop of `requests` requests, `concurrency` of them running at any time.
        `number`: the loop's seed."""
        jobs = deque(make_jobs(requests, 8192, seed=number, scale=0.5))
        under_way = tokens = 0
        began_ms = self._clock.expected_ms
        while jobs or under_way:
            while jobs and under_way < concurrency:
                self._add(jobs.popleft().prompt, seed=1000 * number + len(jobs))
                under_way += 1
            for delta in self._steps.step():
                tokens += len(delta.token_ids)
                if delta.usage is not None:
                    under_way -= 1
                    self.verified += delta.usage.draft_tokens
        return 1000.0 * tokens / (self._clock.expected_ms - began_ms)

    def _add(self, prompt: Sequence[int], seed: int) -> None:
        params = SamplingParams(max_tokens=ANSWER_TOKENS, ignore_eos=True, seed=seed)
        request = make_request(f"r{self._served}", prompt, arrival=self._served, params=params, seed=seed)
        self._served += 1
        self._scheduler.add(request, self._clock.now_ns)


def controller(cost_model: StepCostModel) -> DepthController:
    return DepthController(cost_model, max_depth=MOST, below=10**6)
