"""A tenant's limit counters: used, held by running requests, remaining, time to reset."""

from typing import Any

from gateway.admission import LimitState, Measure, StoreAway, quotas_of_tenant
from gateway.billing.credit import read_credit
from gateway.management.operations.context import AdminContext
from gateway.management.operations.errors import unavailable
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import OperationInput, Route
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
        "used": Member(_AMOUNT, "Committed and held together."),
        "held": Member(_AMOUNT, "The part of it that requests under way hold: what they do not use comes back."),
        "remaining": _AMOUNT,
        "reset_ms": Member(_AMOUNT, "When all that counts now will have left the window; 0: nothing does by time."),
    },
)
LIMIT_USE = answer(
    "LimitUse",
    {
        "tenant_id": TENANT_ID,
        "tier": Member(Text(16), "Its limits bind where none are stated for the tenant."),
        "data": ListOf(COUNTER, MAX_COUNTERS),
    },
)


class LimitUse:
    """Handlers."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context

    async def read(self, call: OperationInput) -> Any:
        tenant_id = call.path["tenant_id"]
        async with self._context.reading() as connection:
            tenant = await tenant_of(connection, tenant_id)
            stated = (await read_limits(connection, [tenant_id])).get(tenant_id, {})
            credit = (await read_credit(connection, [tenant_id])).get(tenant_id)
        granted = None if credit is None else credit.granted_nanodollars
        # A tier that the settings no longer have serves no requests, so it has no limits.
        quotas = quotas_of_tenant(tenant_id, stated, self._context.tiers.get(tenant.tier, Limits()), granted)
        try:
            states = await self._context.limiter.usage(quotas)
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


def limit_use_routes(context: AdminContext) -> list[Route]:
    return [
        Route(
            name="readLimitUse",
            about="Where the counters of a tenant, its keys and its models stand: used, held, left, reset.",
            method="GET",
            path="/tenants/{tenant_id}/limits/use",
            allowed=READERS,
            answer=LIMIT_USE,
            read=LimitUse(context).read,
        )
    ]
