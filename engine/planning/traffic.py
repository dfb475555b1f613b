"""Traffic by hour as values: streams of requests with rates, lengths, shared prefixes and sessions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import NamedTuple, Protocol, Self

from engine.request import ServiceClass
from engine.simulation.fleet_traffic import ANSWER_TOKEN, Session, Turn

HOURS = 24
_HEAD_TOKENS = 4
_DIGITS = 250
_MOST_TURNS = 24
_EARLIER_TURNS = 2
"""Sessions are drawn from this multiple of their mean duration before a window."""


class Window(NamedTuple):
    """A part of an hour to play: `seconds` that are measured, after `warm_s` that are not."""

    hour: int
    warm_s: float
    seconds: float


class Traffic(Protocol):
    """Requests of one or more hours."""

    @property
    def loads(self) -> Sequence[float]:
        """Tokens of prompts and answers per second, by hour."""
        ...

    @property
    def rates(self) -> Sequence[float]:
        """Requests per second, by hour."""
        ...

    @property
    def service_classes(self) -> Sequence[str]:
        """The names of all classes, sorted."""
        ...

    def scaled(self, factors: Mapping[str, float]) -> Self:
        """The same with more or fewer requests. `factors`: by class or tenant; `all` for every request."""
        ...

    def draw(self, window: Window, classes: Mapping[str, ServiceClass], seed: int) -> list[Session]:
        """The arrivals of a window in order of time, from 0 on."""
        ...

    def mean_lengths(self, hour: int) -> "MeanLengths":
        """Mean lengths of the hour's requests."""
        ...


class MeanLengths(NamedTuple):
    """Mean tokens of a request: of the prompt, of the part that others of its prefix group share, and of the answer."""

    prompt: float
    shared: float
    answer: float


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of tokens with this mean; `sigma` of the logarithm, 0: all have the mean. Cut to
    `least` and `most` (None: four times the mean)."""

    mean: float
    sigma: float = 0.6
    least: int = 1
    most: int | None = None

    def draw(self, random: Random) -> int:
        most = math.ceil(4 * self.mean) if self.most is None else self.most
        value = random.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma) if self.sigma else self.mean
        return max(self.least, min(most, round(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of one tenant in one class. `rates`: requests per second in each hour. `prompt`: of a request's own
    tokens, after the `prefix_tokens` that all requests of the stream begin with. `turns`: mean requests of a session,
    each with all before it in its prompt, `think_s` after the answer to the last."""

    tenant: str
    service_class: str
    rates: tuple[float, ...]
    prompt: Lengths
    answer: Lengths
    prefix_tokens: int = 0
    turns: float = 1.0
    think_s: float = 10.0

    @property
    def lengths(self) -> MeanLengths:
        """Mean tokens of a request, with the turns before it."""
        before = (self.turns - 1) / 2 * (self.prompt.mean + self.answer.mean)
        shared = self.prefix_tokens + before
        return MeanLengths(shared + self.prompt.mean, shared, self.answer.mean)


@dataclass(frozen=True, slots=True)
class DescribedTraffic:
    """Streams with rates for each hour of a day. Arrivals are Poisson processes."""

    streams: tuple[Stream, ...]

    @property
    def hours(self) -> range:
        return range(max(len(stream.rates) for stream in self.streams))

    @property
    def rates(self) -> list[float]:
        return [sum(stream.rates[hour] for stream in self.streams) for hour in self.hours]

    @property
    def loads(self) -> list[float]:
        return [
            sum(stream.rates[hour] * (stream.lengths.prompt + stream.lengths.answer) for stream in self.streams)
            for hour in self.hours
        ]

    @property
    def service_classes(self) -> list[str]:
        return sorted({stream.service_class for stream in self.streams})

    def scaled(self, factors: Mapping[str, float]) -> Self:
        streams = []
        for stream in self.streams:
            factor = factor_of(factors, stream.service_class, stream.tenant)
            streams.append(replace(stream, rates=tuple(factor * rate for rate in stream.rates)))
        return replace(self, streams=tuple(streams))

    def mean_lengths(self, hour: int) -> MeanLengths:
        total = self.rates[hour] or 1.0
        parts = [(stream.rates[hour] / total, stream.lengths) for stream in self.streams]
        return MeanLengths(*(sum(share * lengths[each] for share, lengths in parts) for each in range(3)))

    def draw(self, window: Window, classes: Mapping[str, ServiceClass], seed: int) -> list[Session]:
        sessions: list[Session] = []
        for number, stream in enumerate(self.streams):
            random = Random(f"stream {number} {seed} {window.hour}")
            sessions += _sessions(stream, number, window, classes[stream.service_class], random)
        return sorted(sessions, key=lambda session: session.at_ns)


def _sessions(
    stream: Stream, number: int, window: Window, service_class: ServiceClass, random: Random
) -> list[Session]:
    """Sessions that have turns in the window. Those that began before it have had turns, whose text is in their
    prompts; the time of answers is not counted there."""
    per_s = stream.rates[window.hour] / stream.turns
    prefix = prompt_tokens((number, 0), stream.prefix_tokens)
    end_s = window.warm_s + window.seconds
    now_s = -_EARLIER_TURNS * stream.turns * stream.think_s if stream.turns > 1 else 0.0
    sessions: list[Session] = []
    while per_s and (now_s := now_s + random.expovariate(per_s)) < end_s:
        count = 1 if stream.turns <= 1 else 1 + min(int(random.expovariate(1 / (stream.turns - 0.5))), _MOST_TURNS)
        at_s, first_s, history, turns = now_s, now_s, prefix, list[Turn]()
        for turn in range(count):
            thought_s = random.expovariate(1 / stream.think_s) if turn else 0.0
            tokens = prompt_tokens((number, 1 + len(sessions), turn), stream.prompt.draw(random))
            answer_tokens = stream.answer.draw(random)
            at_s += thought_s
            if at_s < 0:
                history = (*history, *tokens, *(ANSWER_TOKEN,) * answer_tokens)
            elif at_s < end_s:
                first_s = first_s if turns else at_s
                turns.append(Turn(tokens, answer_tokens, round(thought_s * 1e9)))
        if turns:
            sessions.append(Session(round(first_s * 1e9), stream.tenant, service_class, history, tuple(turns)))
    return sessions


def prompt_tokens(key: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` token ids. Prompts of different keys have different ids from the first block on; those of one key begin
    alike. After the head all are those of answers, so that a prompt may contain answers before it.

    Ids are small integers, of which Python has one object each.
    """
    head: list[int] = []
    for value in key:
        for _ in range(_HEAD_TOKENS):
            value, digit = divmod(value, _DIGITS)
            head.append(2 + digit)
    return (*head[:count], *(ANSWER_TOKEN,) * (count - len(head)))


def factor_of(factors: Mapping[str, float], service_class: str, tenant: str) -> float:
    """The product of the factors for a request's class, for its tenant and for `all`."""
    names = dict.fromkeys((service_class, tenant, "all"))
    return math.prod(factors.get(name, 1.0) for name in names)
