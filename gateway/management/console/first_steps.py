"""The steps from an empty installation to its first request."""

from dataclasses import dataclass

from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import PageRequest
from gateway.tenancy.names import first_keys, first_tenants


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """`tenant_id`: of a tenant to make a key for; None: there is no tenant. `model`: to send the first request to;
    None: none is loaded. `origin`: scheme and host of this gateway, as the browser names it."""

    tenant_id: str | None
    has_key: bool
    model: str | None
    origin: str


async def first_steps(context: ConsoleContext, page_request: PageRequest) -> FirstSteps:
    principal = page_request.tenant
    models = sorted(context.engine.models)
    if principal is not None:
        own = [name for name in models if principal.may_use(name)]
        return FirstSteps(principal.tenant_id, True, next(iter(own), None), page_request.origin)
    async with context.admin.reading() as connection:
        tenants = await first_tenants(connection, 1)
        keys = await first_keys(connection, None, 1)
    has_key = any(not each.is_revoked for each in keys)
    return FirstSteps(next(iter(tenants), None), has_key, next(iter(models), None), page_request.origin)
