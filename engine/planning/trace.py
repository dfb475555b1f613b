"""Recorded requests as traffic: no text, only times and lengths."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import NamedTuple, Self

from engine.planning.traffic import MeanLengths, Window, factor_of, prompt_tokens
from engine.request import ServiceClass
from engine.simulation.fleet_traffic import Session, Turn

_HOUR_S = 3600.0


class TraceRow(NamedTuple):
    """A request. `at_s`: seconds from the trace's start. `prefix_group`: requests of one group begin with the same
    `prefix_tokens` tokens. `session`: each prompt of a session begins with the whole prompt and answer before it."""

    at_s: float
    tenant: str
    service_class: str
    prompt_tokens: int
    output_tokens: int
    prefix_group: str = ""
    prefix_tokens: int = 0
    session: str = ""


@dataclass(frozen=True)
class TraceTraffic:
    """Rows in order of time. A window of an hour is its busiest part of that length."""

    rows: tuple[TraceRow, ...]

    @cached_property
    def _by_hour(self) -> list[list[TraceRow]]:
        hours: list[list[TraceRow]] = [[] for _ in range(int(self.rows[-1].at_s // _HOUR_S) + 1)]
        for row in self.rows:
            hours[int(row.at_s // _HOUR_S)].append(row)
        return hours

    def _seconds(self, hour: int) -> float:
        """Length of an hour: the last one ends with the trace."""
        whole = hour + 1 < len(self._by_hour)
        return _HOUR_S if whole else max(self.rows[-1].at_s - hour * _HOUR_S, 1.0)

    @property
    def rates(self) -> list[float]:
        return [len(rows) / self._seconds(hour) for hour, rows in enumerate(self._by_hour)]

    @property
    def loads(self) -> list[float]:
        return [sum(map(_tokens, rows)) / self._seconds(hour) for hour, rows in enumerate(self._by_hour)]

    @property
    def service_classes(self) -> list[str]:
        return sorted({row.service_class for row in self.rows})

    def mean_lengths(self, hour: int) -> MeanLengths:
        rows = self._by_hour[hour]
        if not rows:
            return MeanLengths(1.0, 0.0, 1.0)
        sums = ((row.prompt_tokens, row.prefix_tokens, row.output_tokens) for row in rows)
        return MeanLengths(*(sum(column) / len(rows) for column in zip(*sums, strict=True)))

    def scaled(self, factors: Mapping[str, float]) -> Self:
        """Requests are repeated or left out at random. A repetition arrives within a minute, and shares nothing but the
        prefix of its group."""
        random, rows = Random(0), []
        for row in self.rows:
            factor = factor_of(factors, row.service_class, row.tenant)
            copies = int(factor) + (random.random() < factor % 1)
            rows += [row] * min(copies, 1)
            for copy in range(1, copies):
                session = row.session and f"{row.session} copy {copy}"
                rows.append(row._replace(at_s=row.at_s + random.uniform(0, 60), session=session))
        end_s = self.rows[-1].at_s
        rows = [row._replace(at_s=min(row.at_s, end_s)) for row in rows]
        if not rows:
            raise ValueError("no request is left of the trace")
        return replace(self, rows=tuple(sorted(rows, key=lambda row: row.at_s)))

    def draw(self, window: Window, classes: Mapping[str, ServiceClass], seed: int) -> list[Session]:
        rows = self._by_hour[window.hour]
        start_s = self._busiest_start(rows, window)
        length_s = window.warm_s + window.seconds
        groups: defaultdict[str, int] = defaultdict(lambda: 1 + len(groups))
        sessions: defaultdict[str, int] = defaultdict(lambda: 1 + len(sessions))
        drawn = []
        for number, row in enumerate(rows):
            if start_s <= row.at_s < start_s + length_s:
                shared = min(row.prefix_tokens, row.prompt_tokens - 1) if row.prefix_group else 0
                prefix = prompt_tokens((0, groups[f"{row.tenant} {row.prefix_group}"]), shared)
                key = (2, sessions[row.session]) if row.session else (1, number, seed)
                turn = Turn(prompt_tokens(key, row.prompt_tokens - shared), row.output_tokens, 0)
                at_ns = round((row.at_s - start_s) * 1e9)
                drawn.append(Session(at_ns, row.tenant, classes[row.service_class], prefix, (turn,)))
        return drawn

    def _busiest_start(self, rows: Sequence[TraceRow], window: Window) -> float:
        """The start of the window with the most tokens after its warm-up, of those that begin a window's length after
        one another."""
        hour_s, end_s = window.hour * _HOUR_S, window.hour * _HOUR_S + self._seconds(window.hour)
        sums: defaultdict[int, int] = defaultdict(int)
        for row in rows:
            sums[int((row.at_s - hour_s) // window.seconds)] += _tokens(row)
        busiest = max(sums, key=lambda each: (sums[each], -each), default=0)
        start_s = hour_s + busiest * window.seconds - window.warm_s
        return max(hour_s, min(start_s, end_s - window.warm_s - window.seconds))


def _tokens(row: TraceRow) -> int:
    return row.prompt_tokens + row.output_tokens
