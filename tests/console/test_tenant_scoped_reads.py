"""A tenant reads its own records alone, with any query."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from gateway.http.errors import APIError
from gateway.management.console.tenant_scoped_reads import TenantScopedReads
from tests.console.house import House


async def own(console: House, who: str = "acme") -> TenantScopedReads:
    principal = await console.services.authenticator.authenticate(console.keys[who])
    return TenantScopedReads(console.admin.operations, principal)


async def test_another_tenants_id_gives_way_to_its_own(console: House) -> None:
    mine = await own(console)
    theirs = {"tenant_id": console.tenant["globex"].id}
    keys = await mine.read("listKeys", query=theirs)
    assert {each["tenant_id"] for each in keys["data"]} == {console.tenant["acme"].id}
    assert (await mine.read("readLimitUse", path=theirs))["tenant_id"] == console.tenant["acme"].id


async def test_every_operation_is_bound_or_refused(console: House) -> None:
    """Of all that the admin API can do: the tenant's own id stands in the call, or there is no call."""
    principal = await console.services.authenticator.authenticate(console.keys["acme"])
    calls: list[tuple[dict[str, str], dict[str, str]]] = []

    async def read(name: str, administrator: object, path: dict[str, str], query: dict[str, str]) -> None:
        calls.append((path, query))

    operations: Any = SimpleNamespace(read=read)
    mine, theirs = TenantScopedReads(operations, principal), {"tenant_id": "theirs"}
    refused = set()
    for route in console.admin.routes:
        before = len(calls)
        with suppress(APIError):
            await mine.read(route.name, theirs, theirs)
        if len(calls) == before:
            refused.add(route.name)
            continue
        path, query = calls[-1]
        assert route.read is not None
        if "tenant_id" in route.path_names:
            assert path["tenant_id"] == principal.tenant_id
        else:
            assert "tenant_id" in route.query
            assert query["tenant_id"] == principal.tenant_id
    assert calls
    assert {"listTenants", "readInvoice", "listAudit", "createKey", "readReconciliation"} <= refused
