"""The smallest fleet that meets the targets, and the load at which a fleet misses one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from engine.config import BLOCK_TOKENS
from engine.planning.deployment import Deployment
from engine.planning.outcome import Outcome
from engine.planning.step_features import StepFeatures
from engine.planning.targets import Breach, Target, breaches
from engine.planning.traffic import MeanLengths

MAX_REPLICAS = 1024
_FIRST_BUSY = 0.8
"""Share of the time for which replicas compute in the first guess."""
_CONTEXT_SHARE = 0.9
"""Share of the blocks that running requests hold in the first guess."""

Evaluate = Callable[[Sequence[int]], Sequence[Outcome]]
"""Plays the busiest hour on these numbers of replicas, all at once."""


class NoFleet(ValueError):
    """No number of replicas meets the targets. The message names the target that is missed."""


def replica_rate(deployment: Deployment, lengths: MeanLengths) -> tuple[float, int]:
    """Requests per second that a replica computes if it always has the most that fit, and how many those are at once.

    Of each request it computes the part of the prompt that is not shared, and every token of its answer in a step with
    all the others, at the mean context."""
    context = lengths.prompt + lengths.answer / 2
    own_blocks = deployment.sequence_blocks(max(context - lengths.shared, BLOCK_TOKENS))
    running = max(min(deployment.max_running, int(_CONTEXT_SHARE * deployment.num_blocks / own_blocks)), 1)
    own_prompt = max(lengths.prompt - lengths.shared, 1.0)
    # in the steady state a request begins every `answer` decode steps of its slot
    prefill_each_step = running * own_prompt / max(lengths.answer, 1.0)
    chunk = min(prefill_each_step, deployment.step_tokens - running) if deployment.step_tokens > running else 1
    features = StepFeatures(int(chunk), int(chunk * lengths.prompt / 2), running, int(running * context))
    per_step = running / max(lengths.answer, 1.0) * chunk / prefill_each_step
    return 1e9 * per_step / deployment.times.predict_ns(features), running


def mean_answer_s(deployment: Deployment, lengths: MeanLengths) -> float:
    """Seconds of a mean answer among half of the requests that fit at once."""
    _, running = replica_rate(deployment, lengths)
    rows = max(running // 2, 1)
    step = StepFeatures(0, 0, rows, int(rows * (lengths.prompt + lengths.answer / 2)))
    return lengths.answer * deployment.times.predict_ns(step) / 1e9


def first_guess(deployment: Deployment, lengths: MeanLengths, rate: float) -> int:
    """Replicas for `rate` requests per second, by the means alone."""
    return min(max(ceil(rate / (_FIRST_BUSY * replica_rate(deployment, lengths)[0])), 1), MAX_REPLICAS)


def smallest_fleet(evaluate: Evaluate, targets: Mapping[str, Target], first: int) -> tuple[int, Outcome]:
    """The smallest number of replicas that meets the targets, where one fewer misses one, and its outcome.

    Searched from `first` on: in steps of a quarter until one number fails and a larger one passes, then by halves. A
    number that passes while a larger one fails does not count.

    Raises:
        NoFleet: `MAX_REPLICAS`, or four times as many as the first guess and four more, miss them.
    """
    low, high, best = 0, MAX_REPLICAS + 1, None
    wanted = sorted({max(first - 1, 1), first})
    while True:
        for number, outcome in zip(wanted, evaluate(wanted), strict=True):
            if not outcome.stopped and not breaches(outcome, targets):
                high, best = (number, outcome) if number < high else (high, best)
            else:
                low = max(low, number)
                if low >= min(MAX_REPLICAS, 4 * first + 4):
                    raise NoFleet(_why(outcome, targets, number))
        if high <= low:
            high, best = MAX_REPLICAS + 1, None
        if best is None:
            wanted = [min(max(ceil(1.25 * low), low + 1), MAX_REPLICAS)]
        elif high - low == 1:
            return high, best
        else:
            wanted = [(low + high) // 2 if low else max(int(high / 1.25), 1)]


def _why(outcome: Outcome, targets: Mapping[str, Target], replicas: int) -> str:
    missed = breaches(outcome, targets)
    reason = str(missed[0]) if missed else "too many requests are late or refused"
    return f"no number of replicas up to {replicas} meets the targets: {reason} in the busiest hour"


@dataclass(frozen=True, slots=True)
class LoadStep:
    """The busiest hour at `factor` times its requests. `missed`: targets; empty where all are met."""

    factor: float
    outcome: Outcome
    missed: tuple[Breach, ...]


@dataclass(frozen=True, slots=True)
class Knee:
    """The load at which a target is missed first. `last_good`: the largest factor that was played below it; None: none.
    `first_bad`: the smallest factor that misses one; None: none that was played does. `breaks`: in words, the target
    and the resource that runs out.
    """

    last_good: float | None
    first_bad: float | None
    breaks: str


def find_knee(steps: Sequence[LoadStep], max_running: int) -> Knee:
    """The knee of loads in increasing order."""
    good = None
    for step in steps:
        if step.missed:
            return Knee(good, step.factor, f"{step.missed[0]}; {_resource(step.outcome, max_running)}")
        if not step.outcome.outside:
            good = step.factor
    return Knee(good, None, "no target is missed at any load that was played")


def _resource(outcome: Outcome, max_running: int) -> str:
    if outcome.peak_kv_share >= 0.98 or outcome.preemptions > 0.05 * outcome.requests:
        return f"KV memory is full ({outcome.peak_kv_share:.0%} of the blocks, {outcome.preemptions} preemptions)"
    if outcome.busy_share >= 0.9:
        return f"the replicas compute for {outcome.busy_share:.0%} of the time"
    return f"bursts queue (replicas compute for {outcome.busy_share:.0%} of the time, up to {max_running} at once each)"
