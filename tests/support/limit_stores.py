"""Shared code of the tests of limit stores."""

from collections.abc import Callable

from gateway.admission.model import Demand, Hold, HoldRefusal, HoldRequest, Measure, Quota, Scope
from gateway.admission.store import LimitStore
from gateway.tenancy import ScopeKind

NOON_MS = 1_772_366_400_000
"""2026-03-01 12:00:00 UTC."""


class Clock:
    """Unix milliseconds that a test moves."""

    def __init__(self, now_ms: int = NOON_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


StoreMaker = Callable[[Clock], LimitStore]


def scope(measure: Measure, kind: ScopeKind = ScopeKind.TENANT, id: str = "", tenant: str = "acme") -> Scope:
    return Scope(tenant, kind, id, measure)


def tokens(limit: int, prompt: int = 0, measure: Measure = Measure.TOKENS_PER_MINUTE, per_token: int = 1) -> Demand:
    return Demand(Quota(scope(measure), limit), prompt, per_token)


def each(measure: Measure, limit: int) -> Demand:
    """One of a measure that does not count tokens."""
    return Demand(Quota(scope(measure), limit), 1, 0)


async def hold(store: LimitStore, id: str, *demands: Demand, minimum: int = 1, desired: int = 100) -> Hold:
    answer = await store.hold(HoldRequest(id, demands, minimum, desired))
    assert isinstance(answer, Hold)
    return answer


async def refusal(store: LimitStore, id: str, *demands: Demand, minimum: int = 1, desired: int = 100) -> HoldRefusal:
    answer = await store.hold(HoldRequest(id, demands, minimum, desired))
    assert isinstance(answer, HoldRefusal)
    return answer
