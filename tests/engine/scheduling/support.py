"""A scheduler without reserves, requests that have nothing in common, and steps of it."""

from collections.abc import Callable

from engine.config import SchedulerConfig
from engine.memory import BlockPool, KVCacheManager
from engine.request import STANDARD, Request, SamplingParams, ServiceClass, TokenDelta
from engine.scheduling import RowResult, ScheduledRow, Scheduler, StepPlan, StepResult
from engine.scheduling.cost import H200_LLAMA_8B, StepCostModel
from engine.simulation import make_request

PREMIUM = ServiceClass("premium", priority=0)
CLASSES = (PREMIUM, STANDARD)
"""Without a reserve, so that all blocks and slots are there for all."""
FOREVER = SamplingParams(max_tokens=100_000, ignore_eos=True)


def make_scheduler(
    num_blocks: int = 64,
    *,
    max_running: int = 8,
    step_tokens: int = 64,
    chunk_tokens: int = 64,
    max_model_len: int = 4096,
    prefix_cache: bool = True,
) -> Scheduler:
    config = SchedulerConfig(
        max_running=max_running, step_tokens=step_tokens, chunk_tokens=chunk_tokens, classes=CLASSES
    )
    known_device = StepCostModel.from_coefficients(H200_LLAMA_8B)
    cache = KVCacheManager(BlockPool(num_blocks), prefix_cache=prefix_cache)
    return Scheduler(config, cache, max_model_len, known_device)


def prompts(count: int, tokens: int, params: SamplingParams = FOREVER) -> list[Request]:
    """Requests whose prompts have nothing in common."""
    return [
        make_request(f"r{number}", range(1000 * number, 1000 * number + tokens), arrival=number, params=params)
        for number in range(count)
    ]


def planned(plan: StepPlan | None) -> list[tuple[str, int, int]]:
    """The rows as (request, first position, tokens)."""
    return [] if plan is None else [(row.request.id, row.start, row.tokens) for row in plan.rows]


def outcome(plan: StepPlan, of_row: Callable[[ScheduledRow], RowResult] | None = None) -> StepResult:
    """By default, every row that samples draws token 1."""
    of_row = of_row or (lambda row: RowResult(token=1 if row.samples else None))
    return StepResult(tuple(of_row(row) for row in plan.rows))


def step(scheduler: Scheduler) -> tuple[list[tuple[str, int, int]], list[TokenDelta]]:
    plan = scheduler.schedule()
    assert plan is not None
    deltas = scheduler.commit(plan, outcome(plan))
    scheduler.check()
    return planned(plan), deltas


def family(choices: int, tokens: int = 40, params: SamplingParams = FOREVER) -> list[Request]:
    """A parent and its forks, in order."""
    parent = make_request("0", range(tokens), arrival=0, seed=100, params=params)
    return [parent] + [
        make_request(str(n), range(tokens), arrival=n, seed=100 + n, fork_of=parent, params=params)
        for n in range(1, choices)
    ]
