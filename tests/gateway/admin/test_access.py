"""Every route with every kind of key: what the route table says is what happens."""

from typing import Any

import httpx
import pytest
import structlog

from gateway.management.http.app import with_description
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.change import COMMAND_LINE
from gateway.management.operations.context import AdminContext
from gateway.management.operations.resources import admin_routes
from gateway.management.operations.roles import Role
from gateway.management.operations.routes import PREFIX, Route
from gateway.tenancy.keys import ADMIN_PREFIX, new_key
from tests.gateway.admin.harness import TIERS, Admin
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter

# The database of these is never asked: only their declarations count.
_NOTHING: Any = None
ROUTES: tuple[Route, ...] = with_description(
    admin_routes(AdminContext(_NOTHING, PEPPER, TIERS, _NOTHING, _NOTHING, _NOTHING, invoice_grace_s=0))
)
IN_PATHS = {
    "tenant_id": "00000000-0000-0000-0000-000000000000",
    "key_id": "000000000000",
    "month": "2026-01",
    "upload_id": "0" * 32,
    "adapter_version": "1",
    "adapter_file": "adapter_config.json",
}
WRITES = [route for route in ROUTES if route.read is None]


def path_of(route: Route) -> str:
    return route.path.format(**{name: IN_PATHS.get(name, "x") for name in route.path_names})


async def call(admin: Admin, route: Route, key: str | None, **rest: Any) -> httpx.Response:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return await admin.http.request(route.method, PREFIX + path_of(route), headers=headers, **rest)


def test_the_table_is_the_whole_application(admin: Admin) -> None:
    assert [(route.method, route.path) for route in admin.app.routes] == [(each.method, each.path) for each in ROUTES]
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)
    assert len({route.name for route in ROUTES}) == len(ROUTES)


def test_the_audit_log_has_no_way_in() -> None:
    assert all(route.method == "GET" for route in ROUTES if route.path.startswith("/audit"))


def test_a_viewer_changes_nothing_and_an_admin_may_do_all() -> None:
    assert [route.name for route in WRITES if Role.VIEWER in route.allowed] == []
    assert [route.name for route in ROUTES if Role.ADMIN not in route.allowed] == []


def test_a_viewer_reads_everything_and_billing_all_but_the_audit_log() -> None:
    reads = [route for route in ROUTES if route.read is not None]
    assert [route.name for route in reads if Role.VIEWER not in route.allowed] == []
    kept = {route.path for route in reads if Role.BILLING not in route.allowed}
    assert kept == {"/audit", "/audit/verification"}


async def test_every_route_with_every_role(admin: Admin) -> None:
    """A role that may comes as far as to what is asked; one that may not does not, whatever it asks."""
    for route in ROUTES:
        for role in Role:
            response = await call(admin, route, admin.keys[role])
            if role in route.allowed:
                assert response.status_code not in (401, 403, 405, 500), (route.name, role, response.text)
            else:
                assert response.status_code == 403, (route.name, role)
                assert response.json()["error"]["code"] == "role_not_allowed"


async def test_every_route_without_a_key_that_opens(admin: Admin, context: AdminContext, store: TenantWriter) -> None:
    keys = AdminKeyStore(context.database, PEPPER, now=context.now)
    revoked = await keys.create("gone", Role.ADMIN, COMMAND_LINE)
    await keys.revoke(revoked.record.public_id, COMMAND_LINE)
    await store.create_tenant("acme", "premium")
    tenants = (await store.create_key("acme")).plaintext
    genuine = admin.keys["admin"]
    presented = {
        "none": None,
        "empty": "",
        "a tenant's": tenants,
        "revoked": revoked.plaintext,
        "made up": new_key(ADMIN_PREFIX).plaintext,
        "another secret": genuine[:-1] + ("a" if genuine[-1] != "a" else "b"),
        "a tenant's dressed up": "tpa" + tenants.removeprefix("tp"),
        "the pepper": PEPPER.decode(),
    }
    for route in (route for route in ROUTES if not route.is_public):
        for which, key in presented.items():
            response = await call(admin, route, key)
            assert response.status_code == 401, (route.name, which)
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path", ["", "/", "/nope", "/tenants/", "//tenants", "/../v1/models", "/openapi.json/", "/TENANTS"]
)
async def test_what_is_not_there_needs_a_key_too(admin: Admin, path: str) -> None:
    assert (await admin.http.get(PREFIX + path)).status_code == 401
    error = await admin.refused(404, "GET", path)
    assert error["code"] == "not_found"


@pytest.mark.parametrize("path", ["/admin/v10/tenants", "/admin", "/v1/models", "/admin/v1x", "/x/admin/v1/tenants"])
async def test_everything_else_is_not_the_admin_apis(admin: Admin, path: str) -> None:
    response = await admin.http.get(path, headers={"authorization": f"Bearer {admin.keys['admin']}"})
    assert response.json()["error"]["code"] == "elsewhere"


async def test_other_methods(admin: Admin) -> None:
    for path in {route.path for route in ROUTES}:
        there = [route for route in ROUTES if route.path == path]
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"} - {each.method for each in there}:
            response = await admin.http.request(
                method, PREFIX + path_of(there[0]), headers={"authorization": f"Bearer {admin.keys['admin']}"}
            )
            assert response.status_code == 405, (method, path)
            assert set(response.headers["allow"].split(", ")) == {each.method for each in there}


async def test_a_key_revoked_a_moment_ago_writes_nothing_more(admin: Admin, context: AdminContext) -> None:
    """Though it is still remembered as good for a few seconds."""
    key = admin.keys["admin"]
    await admin.get("/tenants")
    await AdminKeyStore(context.database, PEPPER, now=context.now).revoke(key.split("-")[1], COMMAND_LINE)
    await admin.refused(401, "POST", "/tenants", json={"name": "acme", "tier": "premium"})
    assert (await admin.get("/tenants", "viewer"))["data"] == []


async def test_when_a_key_was_last_used_is_known_to_the_minute(admin: Admin, context: AdminContext, clock: Any) -> None:
    keys = AdminKeyStore(context.database, PEPPER, now=clock)

    async def used() -> dict[str, Any]:
        return {record.role: record.last_used_at for record in await keys.list_all()}

    assert set((await used()).values()) == {None}
    await admin.get("/tenants", "viewer")
    first = await used()
    assert first["viewer"] is not None
    assert first["admin"] is None
    await admin.get("/tenants", "viewer")
    assert await used() == first
    clock.now = first["viewer"].replace(minute=first["viewer"].minute + 1)
    await admin.get("/tenants", "viewer")
    assert (await used())["viewer"] > first["viewer"]


@pytest.mark.parametrize("headers", [{"content-length": "65537"}, {}])
async def test_a_body_over_the_bound(admin: Admin, headers: dict[str, str]) -> None:
    async def body() -> Any:
        for _ in range(66):
            yield b" " * 1024

    headers |= {"content-type": "application/json"}
    error = await admin.refused(413, "POST", "/tenants", headers=headers, content=body())
    assert error["code"] == "request_too_large"


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        (b"{", {"content-type": "application/json"}, 400),
        (b"[]", {"content-type": "application/json"}, 400),
        (b"[" * 5000, {"content-type": "application/json"}, 400),
        (b'{"name": "acme"}', {"content-type": "text/plain"}, 415),
        (b'{"name": "acme"}', {"content-type": "application/json", "content-encoding": "gzip"}, 415),
        (b'{"name": NaN}', {"content-type": "application/json"}, 400),
        (b'{"name": "\\ud800"}', {"content-type": "application/json"}, 400),
    ],
)
async def test_a_body_that_is_no_json_object(admin: Admin, content: bytes, headers: dict, status: int) -> None:
    for path in ("/tenants", f"/tenants/{IN_PATHS['tenant_id']}/suspend"):
        await admin.refused(status, "POST", path, content=content, headers=headers)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("limit=" + "9" * 400, "limit"),
        ("limit=٥", "limit"),
        ("cursor=", "cursor"),
        ("cursor=AAAA", "cursor"),
        ("cursor=%00", "cursor"),
        ("suspended=1", "suspended"),
        ("tier=gold", "tier"),
        ("name=%F0%9F", None),
        ("x=1", "x"),
    ],
)
async def test_a_query_that_cannot_be(admin: Admin, query: str, param: str | None) -> None:
    error = await admin.refused(400, "GET", f"/tenants?{query}")
    assert error["param"] == param


async def test_a_query_without_end(admin: Admin) -> None:
    await admin.refused(414, "GET", "/tenants?a=" + "b" * 9000)


async def test_the_access_log_says_which_administrator_and_holds_no_secret(admin: Admin) -> None:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        await admin.post("/tenants", {"name": "acme", "tier": "premium"})
    [line] = lines
    assert (line["key_id"], line["role"]) == (admin.keys["admin"].split("-")[1], "admin")
    assert (line["path"], line["status"]) == ("/admin/v1/tenants", 201)
    assert admin.keys["admin"].rpartition("-")[2] not in str(lines)
