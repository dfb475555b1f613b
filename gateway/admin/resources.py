"""All routes of the admin API."""

from gateway.admin.audit_entries import audit_routes
from gateway.admin.context import AdminContext
from gateway.admin.credit import credit_routes
from gateway.admin.invoices import invoice_routes
from gateway.admin.keys import key_routes
from gateway.admin.limit_use import limit_use_routes
from gateway.admin.limits import limit_routes
from gateway.admin.operations import operation_routes
from gateway.admin.prices import price_routes
from gateway.admin.requests import request_routes
from gateway.admin.route_shares import route_share_routes
from gateway.admin.routes import Route
from gateway.admin.routing import routing_routes
from gateway.admin.session_windows import session_window_routes
from gateway.admin.tenants import tenant_routes
from gateway.admin.usage import usage_routes


def admin_routes(context: AdminContext) -> list[Route]:
    return [
        *tenant_routes(context),
        *key_routes(context),
        *limit_routes(context),
        *limit_use_routes(context),
        *routing_routes(context),
        *session_window_routes(context),
        *price_routes(context),
        *usage_routes(context),
        *request_routes(context),
        *route_share_routes(context),
        *invoice_routes(context),
        *credit_routes(context),
        *operation_routes(context),
        *audit_routes(context),
    ]
