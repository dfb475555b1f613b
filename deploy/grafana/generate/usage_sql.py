"""SQL over usage in ClickHouse: the sums by minute, hour or day where these will do, the events where not."""

from collections.abc import Mapping
from dataclasses import dataclass

from deploy.grafana.generate.panels import SQL, Variable

_RECENT = "bucket >= $__fromTime - INTERVAL 1 DAY AND bucket <= $__toTime"
_OF_TENANTS = "$__conditionalAll(tenant_id IN (${tenant:singlequote}), $tenant)"
_CHOSEN = (
    _OF_TENANTS,
    "$__conditionalAll(key_id IN (${key:singlequote}), $key)",
    "$__conditionalAll(served_model IN (${model:singlequote}), $model)",
    "$__conditionalAll(tier IN (${class:singlequote}), $class)",
)
MOST_LINES = 10
"""Of a panel by tenant or key; all others are one more."""

TENANTS = Variable(
    name="tenant",
    label="Tenant",
    query=SQL(f"SELECT DISTINCT tenant_id FROM usage_by_day WHERE {_RECENT} ORDER BY tenant_id LIMIT 1000"),
    many=True,
)
KEYS = Variable(
    name="key",
    label="Key",
    query=SQL(f"SELECT DISTINCT key_id FROM usage_by_day WHERE {_RECENT} AND {_OF_TENANTS} ORDER BY key_id LIMIT 1000"),
    many=True,
)
MODELS = Variable(
    name="model",
    label="Model",
    query=SQL(f"SELECT DISTINCT served_model FROM usage_by_day WHERE {_RECENT} ORDER BY served_model"),
    many=True,
)
CLASSES = Variable(
    name="class",
    label="Class",
    query=SQL(f"SELECT DISTINCT tier FROM usage_by_day WHERE {_RECENT} ORDER BY tier"),
    many=True,
)
GRAIN = Variable(name="grain", label="Sums by", choices=("minute", "hour", "day"), first="hour")
GPU_HOUR = Variable(name="gpu_hour_dollars", label="Dollars an engine hour costs", first="2.50")

REQUESTS = "toInt64(sum(events))"
FRESH = "toInt64(sum(prompt_tokens) - sum(cached_tokens))"
CACHED = "toInt64(sum(cached_tokens))"
ANSWERED = "toInt64(sum(completion_tokens))"
DOLLARS = "toFloat64(sum(cost_nanodollars)) / 1e9"
ENGINE_HOURS = "toFloat64(sum(engine_ns)) / 3.6e12"
COST = f"{ENGINE_HOURS} * toFloat64OrZero(${{gpu_hour_dollars:singlequote}})"

AMOUNTS = {
    "requests": REQUESTS,
    "prompt tokens": "toInt64(sum(prompt_tokens))",
    "of them cached": CACHED,
    "answer tokens": ANSWERED,
    "dollars": DOLLARS,
    "mean first token": "toFloat64(sum(ttft_ms)) / nullIf(toFloat64(sum(ttft_events)), 0)",
}
UNITS = {"dollars": "currencyUSD", "mean first token": "ms"}
"""Of those of them that are no counts."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of the span that is shown, as far as it meets the conditions. Bars and rows are of whole minutes, hours or
    days of `sums` that begin in the span."""

    sums: str
    conditions: tuple[str, ...] = ()

    def totals(self, amounts: Mapping[str, str]) -> SQL:
        """One row. `amounts` are expressions over the sums by their headings, as everywhere here."""
        return SQL(f"SELECT {_named(amounts)}\n{self._from_sums}")

    def table(self, by: Mapping[str, str], order: str, amounts: Mapping[str, str], limit: int = 100) -> SQL:
        """A row for each value of `by`, columns by their headings; those with the most of `order` first."""
        return SQL(f"SELECT {_named(by)}, {_named(amounts)}\n{self._from_sums}\n{_ranked(by, order, limit)}")

    def table_of_events(self, by: Mapping[str, str], order: str, amounts: Mapping[str, str], limit: int = 100) -> SQL:
        """The same from the events themselves, each once: for what has no sums."""
        return SQL(f"SELECT {_named(by)}, {_named(amounts)}\n{self._from_events}\n{_ranked(by, order, limit)}")

    def over_time(self, amounts: Mapping[str, str]) -> SQL:
        """A line for each amount."""
        return SQL(
            f"SELECT $__timeInterval(bucket) AS time, {_named(amounts)}\n{self._from_sums}\nGROUP BY time ORDER BY time"
        )

    def over_time_by(self, column: str, amount: str) -> SQL:
        """A line for each value of the column."""
        return SQL(
            f"SELECT $__timeInterval(bucket) AS time, {column} AS series, {amount} AS amount\n{self._from_sums}\n"
            "GROUP BY time, series ORDER BY time, series"
        )

    def over_time_by_largest(self, column: str, amount: str) -> SQL:
        """A line for each of the values that are charged the most, and one for all others."""
        largest = f"SELECT {column}\n{self._from_sums}\nGROUP BY {column}"
        largest += f" ORDER BY sum(cost_nanodollars) DESC, {column} LIMIT {MOST_LINES}"
        return self.over_time_by(f"if({column} IN (\n{largest}\n), {column}, 'others')", amount)

    @property
    def _from_sums(self) -> str:
        return f"FROM {self.sums}\nWHERE {' AND '.join(('$__timeFilter(bucket)', *self.conditions))}"

    @property
    def _from_events(self) -> str:
        return f"FROM usage_events FINAL\nWHERE {' AND '.join(('$__timeFilter(occurred_at)', *self.conditions))}"


ALL = Usage("usage_by_minute")
CHOSEN = Usage("usage_by_${grain}", _CHOSEN)
"""For pages with all of the variables above."""


def _named(columns: Mapping[str, str]) -> str:
    return ", ".join(f'{expression} AS "{heading}"' for heading, expression in columns.items())


def _ranked(by: Mapping[str, str], order: str, limit: int) -> str:
    headings = ", ".join(f'"{heading}"' for heading in by)
    return f'GROUP BY {headings} ORDER BY "{order}" DESC, {headings} LIMIT {limit}'
