"""What binds a request."""

from gateway.admission import Measure, demands_of, limits_for
from gateway.tenancy import Limits, Principal, ScopedLimits, ScopeKind, Tier


def principal(*limits: ScopedLimits, tier: Tier = Tier.STANDARD) -> Principal:
    return Principal("t1", "acme", tier, "key1", limits)


def test_the_tier_bounds_the_context_where_nothing_is_stated() -> None:
    for tier, tokens in ((Tier.STANDARD, 32_768), (Tier.PREMIUM, 131_072)):
        limits = limits_for(principal(tier=tier), "m", 1_000_000)
        assert (limits.quotas, limits.context_tokens) == ((), tokens)
        assert limits_for(principal(tier=tier), "m", 2_048).context_tokens == 2_048


def test_a_tenants_own_context_takes_the_place_of_its_tiers() -> None:
    more = ScopedLimits(ScopeKind.TENANT, "", Limits(context_tokens=100_000))
    assert limits_for(principal(more), "m", 1_000_000).context_tokens == 100_000


def test_every_scope_that_concerns_the_request_binds() -> None:
    stated = [
        ScopedLimits(ScopeKind.KEY, "key1", Limits(concurrent=1)),
        ScopedLimits(ScopeKind.KEY, "key2", Limits(concurrent=9)),
        ScopedLimits(ScopeKind.TENANT, "", Limits(requests_per_minute=2, tokens_per_day=0)),
        ScopedLimits(ScopeKind.MODEL, "m", Limits(tokens_per_minute=3, context_tokens=4)),
        ScopedLimits(ScopeKind.MODEL, "key1", Limits(tokens_per_minute=9)),
    ]
    limits = limits_for(principal(*stated), "m", 1000)
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
    quotas = limits_for(principal(everything), "m", 1000).quotas
    demands = demands_of(quotas, prompt_tokens=7, choices=2, prompt_nanodollars=11, token_nanodollars=13)
    assert {demand.quota.scope.measure: demand.amount(10) for demand in demands} == {
        Measure.REQUESTS_PER_MINUTE: 1,
        Measure.TOKENS_PER_MINUTE: 27,
        Measure.TOKENS_PER_DAY: 27,
        Measure.CONCURRENT: 1,
        Measure.NANODOLLARS_PER_MONTH: 271,
    }
