"""All routes of the admin API."""

from gateway.management.operations import (
    adapter_uploads,
    adapters,
    administrators,
    audit_entries,
    costs,
    credit,
    invoices,
    key_use,
    keys,
    latencies,
    limit_use,
    limits,
    prices,
    refusals,
    requests,
    route_shares,
    tenants,
    usage,
)
from gateway.management.operations.context import AdminContext
from gateway.management.operations.policies import policy_routes
from gateway.management.operations.routes import Route

_MODULES = (
    tenants,
    keys,
    key_use,
    limits,
    limit_use,
    prices,
    usage,
    latencies,
    refusals,
    requests,
    route_shares,
    invoices,
    credit,
    costs,
    adapters,
    adapter_uploads,
    audit_entries,
    administrators,
)
"""Each has `ROUTES`."""


def admin_routes(context: AdminContext) -> list[Route]:
    return [*(route for module in _MODULES for route in module.ROUTES.bind(context)), *policy_routes(context)]
