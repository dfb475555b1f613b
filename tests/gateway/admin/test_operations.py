"""Operations called by name, without HTTP: what the console stands on."""

import pytest

from gateway.http.errors import APIError
from gateway.management.operations.roles import Administrator, Role
from tests.gateway.admin.harness import Admin

ACME = {"name": "acme", "tier": "premium"}


def asked_by(admin: Admin, role: Role = Role.ADMIN) -> Administrator:
    return Administrator(admin.keys[role].split("-")[1], f"a {role}", role)


async def test_a_change_is_the_one_that_http_would_make(admin: Admin) -> None:
    operations = admin.app.operations
    made = await operations.change("createTenant", asked_by(admin), "req_1", body=ACME)
    assert made == await admin.get(f"/tenants/{made['id']}")
    assert made == await operations.read("readTenant", asked_by(admin, Role.VIEWER), {"tenant_id": made["id"]})
    (entry,) = (await admin.get("/audit", params={"resource": "tenant"}))["data"]
    assert (entry["actor"], entry["request_id"], entry["action"]) == (asked_by(admin).key_id, "req_1", "create")


async def test_a_query_is_given_as_texts(admin: Admin) -> None:
    for name in ("a", "b", "c"):
        await admin.post("/tenants", {"name": name, "tier": "standard"})
    page = await admin.app.operations.read("listTenants", asked_by(admin), query={"limit": "2", "suspended": "false"})
    assert page == await admin.get("/tenants", params={"limit": 2, "suspended": "false"})


@pytest.mark.parametrize(
    ("name", "role", "path", "body", "refused"),
    [
        ("createTenant", Role.VIEWER, {}, ACME, (403, None)),
        ("createTenant", Role.ADMIN, {}, {"name": "acme"}, (400, "tier")),
        ("createTenant", Role.ADMIN, {}, {**ACME, "color": "red"}, (400, "color")),
        ("createTenant", Role.ADMIN, {}, {"name": "", "tier": "premium"}, (400, "name")),
        ("suspendTenant", Role.ADMIN, {"tenant_id": "x"}, {}, (404, None)),
        ("suspendTenant", Role.ADMIN, {"tenant_id": "00000000-0000-0000-0000-000000000000"}, {}, (404, None)),
    ],
)
async def test_refusals_are_those_of_http(admin: Admin, name, role, path, body, refused) -> None:
    with pytest.raises(APIError) as caught:
        await admin.app.operations.change(name, asked_by(admin, role), "req_1", path, body)
    assert (caught.value.status, caught.value.param) == refused


async def test_a_key_that_was_revoked_meanwhile_changes_nothing(admin: Admin) -> None:
    stranger = Administrator("aaaaaaaaaaaa", "gone", Role.ADMIN)
    with pytest.raises(APIError) as caught:
        await admin.app.operations.change("createTenant", stranger, "req_1", body=ACME)
    assert caught.value.status == 401
    assert (await admin.get("/tenants"))["data"] == []


async def test_a_repetition_does_nothing_and_holds_no_secret(admin: Admin) -> None:
    operations, by = admin.app.operations, asked_by(admin)
    tenant = await operations.change("createTenant", by, "req_1", body=ACME, idempotency_key="k1")
    path = {"tenant_id": tenant["id"]}
    first = await operations.change("createKey", by, "req_2", path, {"name": "one"}, idempotency_key="k2")
    again = await operations.change("createKey", by, "req_3", path, {"name": "one"}, idempotency_key="k2")
    assert first["key"].startswith("tp-")
    assert again == first | {"key": None}
    assert len((await admin.get("/keys"))["data"]) == 1
    with pytest.raises(APIError) as caught:
        await operations.change("createKey", by, "req_4", path, {"name": "two"}, idempotency_key="k2")
    assert (caught.value.status, caught.value.code) == (409, "idempotency_key_reused")


def test_a_forms_texts_become_members_by_the_kinds_of_the_route(admin: Admin) -> None:
    body_of = admin.app.operations.body_of
    texts = {"name": ["one"], "scopes": ["chat", "usage"], "models": ["m"], "expires_at": [""], "csrf": ["t"]}
    assert body_of("createKey", texts) == {"name": "one", "scopes": ["chat", "usage"], "models": ["m"]}
    assert body_of("createKey", {"scopes": ["chat,usage"], "models": ["", "m"]}) == {
        "scopes": ["chat", "usage"],
        "models": ["m"],
    }
    limits = {"kind": ["tenant"], "requests_per_minute": ["60"], "tokens_per_day": ["many"], "concurrent": [""]}
    assert body_of("replaceLimits", limits) == {"kind": "tenant", "requests_per_minute": 60, "tokens_per_day": "many"}
    assert body_of("suspendTenant", {"reason": ["x"]}) == {}
