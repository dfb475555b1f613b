"""All routes of the admin API."""

from gateway.management.operations.audit_entries import audit_routes
from gateway.management.operations.context import AdminContext
from gateway.management.operations.costs import cost_routes
from gateway.management.operations.credit import credit_routes
from gateway.management.operations.invoices import invoice_routes
from gateway.management.operations.keys import key_routes
from gateway.management.operations.limit_use import limit_use_routes
from gateway.management.operations.limits import limit_routes
from gateway.management.operations.policies import policy_routes
from gateway.management.operations.prices import price_routes
from gateway.management.operations.requests import request_routes
from gateway.management.operations.route_shares import route_share_routes
from gateway.management.operations.routes import Route
from gateway.management.operations.tenants import tenant_routes
from gateway.management.operations.usage import usage_routes


def admin_routes(context: AdminContext) -> list[Route]:
    return [
        *tenant_routes(context),
        *key_routes(context),
        *limit_routes(context),
        *limit_use_routes(context),
        *policy_routes(context),
        *price_routes(context),
        *usage_routes(context),
        *request_routes(context),
        *route_share_routes(context),
        *invoice_routes(context),
        *credit_routes(context),
        *cost_routes(context),
        *audit_routes(context),
    ]
