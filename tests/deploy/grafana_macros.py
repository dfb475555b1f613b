"""Expansion of a panel's query as Grafana and its data sources do it, as far as our dashboards need it.

For variables: Grafana's "Variable syntax" and "Prometheus template variables"; for macros of ClickHouse: the table of
macros in the documentation of `grafana-clickhouse-datasource`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

ALL = "$__all"
Values = Mapping[str, tuple[str, ...]]
"""The chosen values, by the variable's name; `(ALL,)` for all."""


@dataclass(frozen=True, slots=True)
class Page:
    """An open dashboard: the span that it shows in Unix seconds, how far apart its points are, and what is chosen.
    `all_values` are the patterns that variables have for All."""

    start_s: int
    end_s: int
    interval_s: int = 5
    scrape_s: int = 1
    chosen: Values = field(default_factory=dict)
    all_values: Mapping[str, str] = field(default_factory=dict)

    def promql(self, expr: str) -> str:
        """
        Raises:
            ValueError: a variable or a macro is left that is nowhere defined.
        """
        macros = {
            "__rate_interval": f"{max(self.interval_s + self.scrape_s, 4 * self.scrape_s)}s",
            "__interval": f"{self.interval_s}s",
            "__range": f"{self.end_s - self.start_s}s",
        }
        for name, text in macros.items():
            expr = re.sub(rf"\${name}\b", text, expr)
        return _complete(re.sub(r"\$(\w+)", lambda found: self._pattern(found[1]), expr))

    def sql(self, text: str) -> str:
        """
        Raises:
            ValueError: as above.
        """
        start, end = f"toDateTime({self.start_s})", f"toDateTime({self.end_s})"
        text = re.sub(r"\$__timeFilter\((\w+)\)", rf"\1 >= {start} AND \1 <= {end}", text)
        text = re.sub(
            r"\$__timeInterval\((\w+)\)", rf"toStartOfInterval(toDateTime(\1), INTERVAL {self.interval_s} second)", text
        )
        text = text.replace("$__fromTime", start).replace("$__toTime", end)
        text = self._without_conditions_on_all(text)
        text = re.sub(r"\$\{(\w+):singlequote\}", lambda found: _single_quoted(self._values(found[1])), text)
        return _complete(re.sub(r"\$\{(\w+)\}", lambda found: ",".join(self._values(found[1])), text))

    def _without_conditions_on_all(self, text: str) -> str:
        """`$__conditionalAll(condition, $name)`: where all is chosen there is no condition."""
        while (start := text.find("$__conditionalAll(")) >= 0:
            end = _closing(text, text.index("(", start))
            condition, _, name = text[start + len("$__conditionalAll(") : end].rpartition(", $")
            kept = "1=1" if self._values(name) == (ALL,) else condition
            text = text[:start] + kept + text[end + 1 :]
        return text

    def _values(self, name: str) -> tuple[str, ...]:
        if name not in self.chosen:
            raise ValueError(f"there is no variable {name}")
        return self.chosen[name]

    def _pattern(self, name: str) -> str:
        """For `=~` in a PromQL string: values are literal, and a backslash is written twice."""
        values = self._values(name)
        if values == (ALL,):
            return self.all_values[name]
        escaped = [re.sub(r"[\\^$.*+?()[\]{}|']", _escaped, value) for value in values]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"


def _escaped(found: re.Match[str]) -> str:
    return 4 * "\\" if found[0] == "\\" else 2 * "\\" + found[0]


def _single_quoted(values: tuple[str, ...]) -> str:
    return ",".join("'" + value.replace("'", "\\'") + "'" for value in values)


def _closing(text: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError("a bracket is not closed")


def _complete(text: str) -> str:
    if left := re.search(r"\$\S{0,30}", text):
        raise ValueError(f"left as it was: {left[0]}")
    return text
