"""The limits and the demands of a request, from its principal and its model."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gateway.admission.model import Demand, Measure, Quota, Scope
from gateway.tenancy.limits import Limits, ScopedLimits, ScopeKind
from gateway.tenancy.records import Principal


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of one request. `quotas`: what to hold. `context_tokens`: upper bound of prompt and answer
    together."""

    quotas: tuple[Quota, ...]
    context_tokens: int


def limits_for(principal: Principal, models: Collection[str], max_model_len: int, tier_limits: Limits) -> RequestLimits:
    """The limits of this principal on a model, from memory: they were read with its key (`Authenticator`). `models`:
    its name, and that of the adapter that changes it.

    The scopes are the key, the tenant, and the models as used by the tenant. All of them apply; none overrides another.
    `tier_limits` fills in what is not stated for the tenant. The context limit is the smallest one, the model's window
    included.
    """
    scopes = [
        *(stated for stated in principal.limits if _concerns(stated, principal.lineage or principal.key_id, models)),
        ScopedLimits(ScopeKind.TENANT, "", _with_tier(_stated_for_tenant(principal), tier_limits)),
    ]
    contexts = [scope.limits.context_tokens for scope in scopes if scope.limits.context_tokens is not None]
    credit = _credit(principal.tenant_id, principal.credit_nanodollars)
    return RequestLimits(
        (*(quota for stated in scopes for quota in _quotas(principal.tenant_id, stated)), *credit),
        min(max_model_len, *contexts) if contexts else max_model_len,
    )


def quotas_of_tenant(
    tenant_id: str,
    stated: Mapping[ScopeKind, Mapping[str, Limits]],
    tier_limits: Limits,
    credit_nanodollars: int | None,
) -> tuple[Quota, ...]:
    """All quotas of a tenant, for display: those of the tenant itself, as in `limits_for`, and those of each key and
    model that has limits of its own."""
    own = stated.get(ScopeKind.TENANT, {}).get("", Limits())
    scopes = [
        ScopedLimits(ScopeKind.TENANT, "", _with_tier(own, tier_limits)),
        *(
            ScopedLimits(kind, scope_id, limits)
            for kind in (ScopeKind.KEY, ScopeKind.MODEL)
            for scope_id, limits in stated.get(kind, {}).items()
        ),
    ]
    return (
        *(quota for scope in scopes for quota in _quotas(tenant_id, scope)),
        *_credit(tenant_id, credit_nanodollars),
    )


def demands_of(
    quotas: Sequence[Quota], *, prompt_tokens: int, choices: int, prompt_nanodollars: int, token_nanodollars: int
) -> tuple[Demand, ...]:
    """The request's demand on each quota, for an answer of `choices` texts of the granted length.

    `prompt_tokens`, `prompt_nanodollars`: of all prompts together. `token_nanodollars`: price of an answer token,
    rounded up, so the held amount is never below the used one.
    """
    money = (prompt_nanodollars, choices * token_nanodollars)
    taken = {
        Measure.REQUESTS_PER_MINUTE: (1, 0),
        Measure.CONCURRENT: (1, 0),
        Measure.TOKENS_PER_MINUTE: (prompt_tokens, choices),
        Measure.TOKENS_PER_DAY: (prompt_tokens, choices),
        Measure.NANODOLLARS_PER_MONTH: money,
        Measure.CREDIT_NANODOLLARS: money,
    }
    return tuple(Demand(quota, *taken[quota.scope.measure]) for quota in quotas)


def _concerns(stated: ScopedLimits, lineage: str, models: Collection[str]) -> bool:
    match stated.kind:
        case ScopeKind.KEY:
            return stated.scope_id == lineage
        case ScopeKind.MODEL:
            return stated.scope_id in models
        case ScopeKind.TENANT:
            return False


def _credit(tenant_id: str, credit_nanodollars: int | None) -> list[Quota]:
    """The quota of a prepaid tenant. Corrections may exceed the grants, so the amount is at least 0."""
    if credit_nanodollars is None:
        return []
    scope = Scope(tenant_id, ScopeKind.TENANT, "", Measure.CREDIT_NANODOLLARS)
    return [Quota(scope, max(0, credit_nanodollars))]


def _stated_for_tenant(principal: Principal) -> Limits:
    return next((stated.limits for stated in principal.limits if stated.kind is ScopeKind.TENANT), Limits())


def _with_tier(stated: Limits, tier: Limits) -> Limits:
    return Limits(
        _first(stated.requests_per_minute, tier.requests_per_minute),
        _first(stated.tokens_per_minute, tier.tokens_per_minute),
        _first(stated.tokens_per_day, tier.tokens_per_day),
        _first(stated.concurrent, tier.concurrent),
        _first(stated.context_tokens, tier.context_tokens),
        _first(stated.nanodollars_per_month, tier.nanodollars_per_month),
    )


def _first(stated: int | None, otherwise: int | None) -> int | None:
    return otherwise if stated is None else stated


def _quotas(tenant_id: str, stated: ScopedLimits) -> list[Quota]:
    limits = stated.limits
    numbers = {
        Measure.REQUESTS_PER_MINUTE: limits.requests_per_minute,
        Measure.TOKENS_PER_MINUTE: limits.tokens_per_minute,
        Measure.TOKENS_PER_DAY: limits.tokens_per_day,
        Measure.CONCURRENT: limits.concurrent,
        Measure.NANODOLLARS_PER_MONTH: limits.nanodollars_per_month,
    }
    return [
        Quota(Scope(tenant_id, stated.kind, stated.scope_id, measure), limit)
        for measure, limit in numbers.items()
        if limit is not None
    ]
