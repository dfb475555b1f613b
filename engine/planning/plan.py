"""A whole plan: the number of replicas, the day that they serve, its cost, and the load that they do not bear."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from engine.planning.deployment import Deployment
from engine.planning.hours import PlayedHour, played_hours, window_of
from engine.planning.outcome import Outcome
from engine.planning.runs import Run, Runs
from engine.planning.search import Knee, LoadStep, find_knee, first_guess, mean_answer_s, smallest_fleet
from engine.planning.step_features import Excess
from engine.planning.targets import Target, breaches
from engine.planning.traffic import Traffic, Window

LOADS = (0.5, 1.25, 1.5, 2.0)
"""Factors on the busiest hour, in addition to 1."""
WINDOW_REQUESTS = 600
MAX_PLAYED_REPLICAS = 4
"""The busiest hour is played on all replicas, other hours and loads on a slice of at most this number."""


class OutsideFit(ValueError):
    """The plan needs step times outside the range that they were fitted on. `excesses` has the work."""

    def __init__(self, excesses: Sequence[Excess]) -> None:
        self.excesses = tuple(excesses)
        super().__init__(
            "the step times were not fitted on work of this size: "
            + "; ".join(map(str, excesses))
            + ". Record steps with more load: turnpike plan measure"
        )


@dataclass(frozen=True, slots=True)
class TokenPrices:
    """Dollars per million tokens."""

    prompt: float
    cached: float
    answer: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All that a plan depends on. `replicas`: None to search for the smallest number that meets the `targets`.

    `device_price`: dollars per hour of a device, of which a replica has `devices`. `window_requests`: requests that are
    measured in each window. `loads`: factors to look for the knee at.
    """

    deployment: Deployment
    traffic: Traffic
    targets: Mapping[str, Target] = field(default_factory=lambda: MappingProxyType({}))
    replicas: int | None = None
    device_price: float | None = None
    devices: int = 1
    token_prices: TokenPrices | None = None
    window_requests: int = WINDOW_REQUESTS
    loads: tuple[float, ...] = LOADS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class HourOutcome:
    """A played hour and its outcome."""

    played: PlayedHour
    window: Window
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class DayTotals:
    """Sums over all hours of the traffic. `busy_s`, `least_s`: replica seconds of computing, and the theoretical least
    of the same steps."""

    hours: float
    requests: float
    prompt_tokens: float
    cached_tokens: float
    answer_tokens: float
    busy_s: float
    least_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Dollars. `day`: of the fleet in all hours. `million_answer`, `million_tokens`: the same per million tokens of
    answers, and of prompts and answers. `least_million_answer`: if the steps took their theoretical least, and replicas
    that do not compute cost nothing. `revenue`, `margin`: at the prices; None without."""

    day: float
    million_answer: float
    million_tokens: float
    least_million_answer: float
    revenue: float | None
    margin: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to a `Question`. `hours`: the busiest first. `loads`: in increasing order."""

    question: Question
    replicas: int
    hours: tuple[HourOutcome, ...]
    loads: tuple[LoadStep, ...]
    knee: Knee | None
    day: DayTotals
    costs: Costs | None

    @property
    def busiest(self) -> Outcome:
        return self.hours[0].outcome

    @property
    def time_over_least(self) -> float:
        """The time of all steps over the theoretical least."""
        return self.day.busy_s / self.day.least_s


def make_plan(question: Question, runs: Runs) -> Plan:
    """
    Raises:
        NoFleet: no number of replicas meets the targets.
        OutsideFit: the fitted step times do not reach as far as the plan's steps.
        ValueError: the traffic has no requests.
    """
    traffic = question.traffic
    played = played_hours(traffic.loads)
    if not played:
        raise ValueError("the traffic has no requests")
    busiest = _window(question, played[0].hour)

    def evaluate(numbers: Sequence[int]) -> list[Outcome]:
        deployments = [question.deployment.of(number) for number in numbers]
        return runs.play([Run(each, traffic, busiest, question.seed, question.targets) for each in deployments])

    first = None
    replicas = question.replicas
    if replicas is None:
        guess = first_guess(question.deployment, traffic.mean_lengths(busiest.hour), traffic.rates[busiest.hour])
        replicas, first = smallest_fleet(evaluate, question.targets, guess)
    wanted = [Run(question.deployment.of(replicas), traffic, busiest, question.seed)]
    wanted += [_slice(question, traffic, each.hour, replicas) for each in played[1:]]
    factors = [factor for factor in question.loads if factor != 1.0]
    wanted += [_slice(question, traffic.scaled({"all": factor}), busiest.hour, replicas) for factor in factors]
    outcomes = runs.play(wanted) if first is None else [first, *runs.play(wanted[1:])]
    if outside := outcomes[0].outside:
        raise OutsideFit(outside)
    hours = tuple(
        HourOutcome(each, run.window, outcome)
        for each, run, outcome in zip(played, wanted, outcomes[: len(played)], strict=False)
    )
    of_loads = {1.0: outcomes[0]} | dict(zip(factors, outcomes[len(played) :], strict=True))
    loads = tuple(
        LoadStep(factor, of_loads[factor], tuple(breaches(of_loads[factor], question.targets)))
        for factor in sorted(of_loads)
    )
    day = _day(traffic, hours)
    return Plan(
        question=question,
        replicas=replicas,
        hours=hours,
        loads=loads,
        knee=find_knee(loads, question.deployment.max_running) if factors else None,
        day=day,
        costs=_costs(question, replicas, day),
    )


def _window(question: Question, hour: int, traffic: Traffic | None = None) -> Window:
    traffic = traffic or question.traffic
    answer_s = mean_answer_s(question.deployment, traffic.mean_lengths(hour))
    return window_of(hour, traffic.rates[hour], question.window_requests, answer_s)


def _slice(question: Question, traffic: Traffic, hour: int, replicas: int) -> Run:
    """The run of an hour on at most `MAX_PLAYED_REPLICAS`, with their share of the requests: with more replicas waits
    are no longer, and a run takes the time of its requests."""
    played = min(replicas, MAX_PLAYED_REPLICAS)
    if played < replicas:
        traffic = traffic.scaled({"all": played / replicas})
    return Run(question.deployment.of(played), traffic, _window(question, hour, traffic), question.seed)


def _day(traffic: Traffic, hours: Sequence[HourOutcome]) -> DayTotals:
    """Each hour has its own requests, with the mean tokens and times of those of the played hour that stands for it."""
    sums = dict.fromkeys(("requests", "prompt_tokens", "cached_tokens", "answer_tokens", "busy_s", "least_s"), 0.0)
    rates = traffic.rates
    for each in hours:
        outcome, window = each.outcome, each.window
        requests = 3600.0 * sum(rates[hour] for hour in each.played.stands_for)
        sums["requests"] += requests
        scale = requests / max(outcome.requests, 1)
        for name in ("prompt_tokens", "cached_tokens", "answer_tokens"):
            sums[name] += scale * getattr(outcome, name)
        measured = window.seconds / (window.warm_s + window.seconds)
        sums["busy_s"] += scale * measured * outcome.busy_ns / 1e9
        sums["least_s"] += scale * measured * outcome.least_ns / 1e9
    return DayTotals(hours=float(len(rates)), **sums)


def _costs(question: Question, replicas: int, day: DayTotals) -> Costs | None:
    if question.device_price is None or not day.answer_tokens:
        return None
    hourly = replicas * question.devices * question.device_price
    whole, millions = hourly * day.hours, day.answer_tokens / 1e6
    least = day.least_s / 3600 * question.devices * question.device_price
    prices, revenue = question.token_prices, None
    if prices is not None:
        computed = day.prompt_tokens - day.cached_tokens
        revenue = (
            computed * prices.prompt + day.cached_tokens * prices.cached + day.answer_tokens * prices.answer
        ) / 1e6
    return Costs(
        day=whole,
        million_answer=whole / millions,
        million_tokens=1e6 * whole / (day.prompt_tokens + day.answer_tokens),
        least_million_answer=least / millions,
        revenue=revenue,
        margin=None if revenue is None else revenue - whole,
    )
