"""A tenant's limit counters: used, held by running requests, remaining, time to reset."""

from typing import Any

from gateway.admission import LimitState, Measure, StoreAway, quotas_of_tenant
from gateway.billing.credit import read_credit
from gateway.management.operations.context import AdminContext
from gateway.management.operations.errors import unavailable
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import Choice, Integer, ListOf, Member, Text, answer
from gateway.management.operations.wire import TENANT_ID
from gateway.tenancy.grants import MAX_MODEL_CHARS
from gateway.tenancy.limits import Limits, ScopeKind, read_limits
from gateway.tenancy.queries import tenant_of

MAX_COUNTERS = 100_000
_AMOUNT = Integer(0)

COUNTER = answer(
    "LimitCounter",
    {
        "kind": Choice(tuple(ScopeKind)),
        "scope_id": Text(MAX_MODEL_CHARS, 0),
        "name": Choice(tuple(Measure)),
        "limit": _AMOUNT,
        "used": Member(_AMOUNT, "Committed and held amounts."),
        "held": Member(_AMOUNT, "The part held by running requests; what they do not use is released."),
        "remaining": _AMOUNT,
        "reset_ms": Member(_AMOUNT, "Time until the current amount has left the window; 0: it is not reset by time."),
    },
)
LIMIT_USE = answer(
    "LimitUse",
    {
        "tenant_id": TENANT_ID,
        "tier": Member(Text(16), "Its limits apply where the tenant has none of its own."),
        "data": ListOf(COUNTER, MAX_COUNTERS),
    },
)


ROUTES = Routes()


@ROUTES.get("/tenants/{tenant_id}/limits/use", READERS, LIMIT_USE)
async def read_limit_use(context: AdminContext, call: OperationInput) -> Any:
    """Read the limit counters of a tenant, its keys and its models: used, held, remaining, reset."""
    tenant_id = call.path["tenant_id"]
    async with context.reading() as connection:
        tenant = await tenant_of(connection, tenant_id)
        stated = (await read_limits(connection, [tenant_id])).get(tenant_id, {})
        credit = (await read_credit(connection, [tenant_id])).get(tenant_id)
    granted = None if credit is None else credit.granted_nanodollars
    # A tier that the settings no longer have serves no requests, so it has no limits.
    quotas = quotas_of_tenant(tenant_id, stated, context.tiers.get(tenant.tier, Limits()), granted)
    try:
        states = await context.limiter.usage(quotas)
    except StoreAway:
        raise unavailable("The store of limits does not answer.") from None
    return {"tenant_id": tenant_id, "tier": str(tenant.tier), "data": [counter_wire(state) for state in states]}


def counter_wire(state: LimitState) -> dict[str, Any]:
    scope = state.quota.scope
    return {
        "kind": scope.kind.value,
        "scope_id": scope.id,
        "name": scope.measure.value,
        "limit": state.quota.limit,
        "used": state.used,
        "held": state.held,
        "remaining": state.remaining,
        "reset_ms": state.reset_ms,
    }
