"""Checks limits and credit against the billed events alone, independent of the gateway's own counters."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gateway.metering.event import UsageEvent
from tests.whole.adapters import LIMITED, LIMITED_TOKENS_PER_DAY, own_name
from tests.whole.tenants import LIMITS, id_of


def check_credit(
    events: Sequence[UsageEvent], granted_nanodollars: Mapping[str, int], *, parts_were_lost: bool = False
) -> None:
    """No prepaid tenant spends more than it was granted. `parts_were_lost`: a store without its data knew only of the
    gateways that had recorded theirs again; then the credit bounds what is spent at each of them."""
    spent: Counter[tuple[str, str]] = Counter()
    for event in events:
        spent[event.tenant_id, event.source if parts_were_lost else ""] += event.cost_nanodollars
    for tenant, granted in granted_nanodollars.items():
        for (tenant_id, _), nanodollars in spent.items():
            assert tenant_id != id_of(tenant) or nanodollars <= granted, (
                f"{tenant} has {granted} nanodollars and spent {nanodollars}"
            )


def check_limits(events: Sequence[UsageEvent], *, tokens_survive: bool) -> None:
    """No tenant exceeds a limit. `tokens_survive`: the counts of tokens and requests outlived every restart."""
    by_tenant: defaultdict[str, list[UsageEvent]] = defaultdict(list)
    for event in events:
        by_tenant[event.tenant_id].append(event)
    if tokens_survive:
        tenant, name = LIMITED
        limited = [event for event in by_tenant[id_of(tenant)] if own_name(event.requested_model, tenant) == name]
        _check_window(tenant, f"tokens a day of {name}", LIMITED_TOKENS_PER_DAY, limited, _day, _tokens)
    for tenant, limits in LIMITS.items():
        mine = by_tenant[id_of(tenant)]
        if limits.nanodollars_per_month is not None:
            _check_window(tenant, "nanodollars a month", limits.nanodollars_per_month, mine, _month, _cost)
        if not tokens_survive:
            continue
        if limits.tokens_per_day is not None:
            _check_window(tenant, "tokens a day", limits.tokens_per_day, mine, _day, _tokens)
        if limits.tokens_per_minute is not None:
            _check_minute(tenant, "tokens", limits.tokens_per_minute, mine, _tokens)
        if limits.requests_per_minute is not None:
            billed = [event for event in mine if event.completion_tokens]
            _check_minute(tenant, "requests", limits.requests_per_minute, billed, lambda _: 1)


def _opened(event: UsageEvent) -> int:
    """When it was asked for, in Unix milliseconds."""
    return int(event.occurred_at.timestamp() * 1000) - event.total_latency_ms


def _day(at_ms: int) -> Any:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def _month(at_ms: int) -> Any:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m")


def _tokens(event: UsageEvent) -> int:
    return event.prompt_tokens + event.completion_tokens


def _cost(event: UsageEvent) -> int:
    return event.cost_nanodollars


def _check_window(tenant: str, what: str, limit: int, events: list[UsageEvent], window: Any, amount: Any) -> None:
    """Requests count when they are admitted: one that is asked for before a window's edge may count behind it."""
    sums: Counter[Any] = Counter()
    for event in events:
        before, after = window(_opened(event)), window(_opened(event) + 10_000)
        if before == after:
            sums[before] += amount(event)
    for at, used in sums.items():
        assert used <= limit, f"{tenant} has {limit} {what} and used {used} in {at}"


def _check_minute(tenant: str, what: str, limit: int, events: list[UsageEvent], amount: Any) -> None:
    """In no 50 s: a minute's window has buckets of 5 s, and a request is asked for a while before it counts."""
    ordered = sorted((_opened(event), amount(event)) for event in events)
    for index, (start, _) in enumerate(ordered):
        used = sum(each for at, each in ordered[index:] if at < start + 50_000)
        assert used <= limit, f"{tenant} has {limit} {what} a minute and used {used}"
