"""Reads of the admin API for a tenant's pages, each bound to the tenant of the key.

No page chooses whose records it reads. A tenant's page names an operation, and the tenant's id is put in its place
here, over whatever stood there.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.billing.errors import UnknownInvoice
from gateway.management.console.screens import forbidden
from gateway.management.operations.operations import Operations, typed_errors
from gateway.management.operations.roles import Administrator, Role
from gateway.tenancy.limits import ScopeKind
from gateway.tenancy.records import Principal

_NONE: Mapping[str, str] = MappingProxyType({})
_IN_PATH = frozenset({"readLimitUse", "draftInvoice"})
"""Operations below `/tenants/{tenant_id}`."""
_IN_QUERY = frozenset(
    {
        "listKeys",
        "readKeyUse",
        "listInvoices",
        "readUsage",
        "readLatencies",
        "listRequests",
        "readRequest",
        "readRouteShares",
        "listRefusals",
        "readRefusals",
    }
)
"""Operations that take a `tenant_id` as a filter."""


class TenantScopedReads:
    """Reads bound to one tenant. Every read raises `APIError` as the admin API answers."""

    def __init__(self, operations: Operations, principal: Principal) -> None:
        self._operations = operations
        self._principal = principal
        # Reads alone, and of these only what is named above: a tenant's key is no administrator's.
        self._reader = Administrator(principal.key_id, principal.tenant_name, Role.VIEWER)

    async def read(self, name: str, path: Mapping[str, str] = _NONE, query: Mapping[str, str] = _NONE) -> Any:
        """
        Raises:
            APIError: 403, it is no operation that can be bound to a tenant.
        """
        mine = {"tenant_id": self._principal.tenant_id}
        if name in _IN_PATH:
            return await self._operations.read(name, self._reader, {**path, **mine}, query)
        if name in _IN_QUERY:
            return await self._operations.read(name, self._reader, path, {**query, **mine})
        raise forbidden()

    async def invoice(self, number: str, query: Mapping[str, str] = _NONE) -> Any:
        """A final invoice, as JSON or as `query` wants it.

        Raises:
            APIError: 404, the tenant has none of that number, whether another has or not.
        """
        path = {"invoice_number": number}
        invoice = await self._operations.read("readInvoice", self._reader, path)
        if invoice["tenant_id"] != self._principal.tenant_id:
            with typed_errors():
                raise UnknownInvoice("there is no invoice of that number")
        return await self._operations.read("readInvoice", self._reader, path, query) if query else invoice

    def concerns(self, scope: Mapping[str, Any]) -> bool:
        """Whether a limit or a counter concerns this key, as `/v1/limits` has it: the tenant's, its own, and those of
        models that it may use."""
        match scope["kind"]:
            case ScopeKind.KEY:
                return scope["scope_id"] in (self._principal.key_id, self._principal.lineage)
            case ScopeKind.MODEL:
                return self._principal.may_use(scope["scope_id"])
            case _:
                return True
