"""Limits that apply to a request."""

from gateway.admission import Measure, demands_of, limits_for
from gateway.tenancy import Limits, Principal, ScopedLimits, ScopeKind

TIER = Limits(context_tokens=32_768)


def principal(*limits: ScopedLimits) -> Principal:
    return Principal("t1", "acme", "standard", "key1", limits)


def test_the_tier_bounds_what_is_not_stated() -> None:
    limits = limits_for(principal(), ("m",), 1_000_000, TIER)
    assert (limits.quotas, limits.context_tokens) == ((), 32_768)
    assert limits_for(principal(), ("m",), 2_048, TIER).context_tokens == 2_048
    assert limits_for(principal(), ("m",), 1_000_000, Limits()).context_tokens == 1_000_000


def test_a_tenants_own_context_takes_the_place_of_its_tiers() -> None:
    more = ScopedLimits(ScopeKind.TENANT, "", Limits(context_tokens=100_000))
    assert limits_for(principal(more), ("m",), 1_000_000, TIER).context_tokens == 100_000


def test_every_scope_that_concerns_the_request_binds() -> None:
    stated = [
        ScopedLimits(ScopeKind.KEY, "key1", Limits(concurrent=1)),
        ScopedLimits(ScopeKind.KEY, "key2", Limits(concurrent=9)),
        ScopedLimits(ScopeKind.TENANT, "", Limits(requests_per_minute=2, tokens_per_day=0)),
        ScopedLimits(ScopeKind.MODEL, "m", Limits(tokens_per_minute=3, context_tokens=4)),
        ScopedLimits(ScopeKind.MODEL, "key1", Limits(tokens_per_minute=9)),
    ]
    limits = limits_for(principal(*stated), ("m",), 1000, TIER)
    assert limits.context_tokens == 4
    assert {(q.scope.kind, q.scope.id, q.scope.measure, q.limit) for q in limits.quotas} == {
        (ScopeKind.KEY, "key1", Measure.CONCURRENT, 1),
        (ScopeKind.TENANT, "", Measure.REQUESTS_PER_MINUTE, 2),
        (ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY, 0),
        (ScopeKind.MODEL, "m", Measure.TOKENS_PER_MINUTE, 3),
    }
    assert {q.scope.tenant_id for q in limits.quotas} == {"t1"}


def test_demands_grow_with_the_answers() -> None:
    everything = ScopedLimits(ScopeKind.TENANT, "", Limits(1, 2, 3, 4, 5, 6))
    quotas = limits_for(principal(everything), ("m",), 1000, TIER).quotas
    demands = demands_of(quotas, prompt_tokens=7, choices=2, prompt_nanodollars=11, token_nanodollars=13)
    assert {demand.quota.scope.measure: demand.amount(10) for demand in demands} == {
        Measure.REQUESTS_PER_MINUTE: 1,
        Measure.TOKENS_PER_MINUTE: 27,
        Measure.TOKENS_PER_DAY: 27,
        Measure.CONCURRENT: 1,
        Measure.NANODOLLARS_PER_MONTH: 271,
    }
