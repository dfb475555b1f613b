"""Tenants, their keys and their limits, through the API."""

from datetime import timedelta

import pytest

from gateway.tenancy.keys import parse_key
from tests.gateway.admin.harness import UNKNOWN_TENANT, Admin, Clock, new_tenant
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter


async def test_a_tenant_is_created_read_moved_suspended_and_resumed(admin: Admin, store: TenantWriter) -> None:
    tenant = await new_tenant(admin)
    assert tenant.keys() == {"id", "name", "tier", "created_at", "suspended_at"}
    assert (tenant["name"], tenant["tier"], tenant["suspended_at"]) == ("acme", "premium", None)
    assert tenant["created_at"].startswith("2026-01-02T12:00:00.")
    assert tenant["created_at"].endswith("Z")
    one = f"/tenants/{tenant['id']}"
    assert await admin.get(one) == tenant

    moved = (await admin.request("PATCH", one, json={"tier": "standard"})).json()
    assert moved == tenant | {"tier": "standard"}
    suspended = await admin.post(f"{one}/suspend", status=200)
    assert suspended["suspended_at"] > tenant["created_at"]
    assert await admin.post(f"{one}/suspend", status=200) == suspended
    assert (await store.list_tenants())[0].disabled_at is not None
    assert await admin.post(f"{one}/resume", status=200) == moved
    assert await admin.get(one) == moved


async def test_tenants_are_found_by_what_they_are(admin: Admin) -> None:
    tenants = [await new_tenant(admin, name, tier) for name, tier in (("b", "standard"), ("a", "premium"))]
    await admin.post(f"/tenants/{tenants[0]['id']}/suspend", status=200)
    for params, names in (
        ({}, ["a", "b"]),
        ({"tier": "premium"}, ["a"]),
        ({"suspended": "true"}, ["b"]),
        ({"suspended": "false"}, ["a"]),
        ({"name": "b"}, ["b"]),
        ({"name": "c"}, []),
        ({"search": "B"}, ["b"]),
        ({"search": "%"}, []),
    ):
        assert [each["name"] for each in (await admin.get("/tenants", params=params))["data"]] == names


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": "acme"}, "tier"),
        ({"name": "acme", "tier": None}, "tier"),
        ({"name": "a b", "tier": "premium"}, "name"),
        ({"name": "", "tier": "premium"}, "name"),
        ({"name": 5, "tier": "premium"}, "name"),
        ({"name": "acme", "tier": "gold"}, "tier"),
        ({"name": "acme", "tier": "premium", "id": UNKNOWN_TENANT}, "id"),
        ({"name": "acme", "tier": "premium", "disabled_at": None, "role": "admin"}, "disabled_at"),
    ],
)
async def test_a_tenant_that_cannot_be(admin: Admin, body: dict, param: str) -> None:
    error = await admin.refused(400, "POST", "/tenants", json=body)
    assert error["param"] == param
    assert (await admin.get("/tenants"))["data"] == []


async def test_a_name_that_is_taken(admin: Admin) -> None:
    await new_tenant(admin)
    error = await admin.refused(409, "POST", "/tenants", json={"name": "acme", "tier": "standard"})
    assert (error["code"], error["param"]) == ("tenant_exists", "name")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "", None),
        ("PATCH", "", {"tier": "premium"}),
        ("POST", "/suspend", None),
        ("POST", "/resume", None),
        ("POST", "/keys", {}),
        ("GET", "/limits", None),
        ("PUT", "/limits", {"kind": "tenant"}),
    ],
)
async def test_a_tenant_that_is_not_there(admin: Admin, method: str, path: str, body: dict | None) -> None:
    extra = {} if body is None else {"json": body}
    error = await admin.refused(404, method, f"/tenants/{UNKNOWN_TENANT}{path}", **extra)
    assert error["code"] == "tenant_not_found"
    for odd in ("acme", UNKNOWN_TENANT.upper() + "x", "%00", "a'--"):
        await admin.refused(404, method, f"/tenants/{odd}{path}", **extra)


async def test_a_key_is_shown_once_and_opens(admin: Admin, store: TenantWriter) -> None:
    tenant = await new_tenant(admin)
    body = {"name": "ci", "scopes": ["chat", "usage"], "models": ["m"], "expires_at": "2026-01-03T13:00:00+01:00"}
    created = await admin.post(f"/tenants/{tenant['id']}/keys", body)
    plaintext = created.pop("key")
    assert created["scopes"] == ["chat", "usage"]
    assert created["expires_at"] == "2026-01-03T12:00:00.000000Z"
    assert (await store.active_keys([created["id"]]))[created["id"]].digest == parse_key(plaintext).digest(PEPPER)
    assert await admin.get(f"/keys/{created['id']}") == created
    listed = await admin.request("GET", "/keys", params={"tenant_id": tenant["id"]})
    assert listed.json()["data"] == [created]
    assert plaintext.rpartition("-")[2] not in listed.text


async def test_a_key_without_anything_said_may_do_everything(admin: Admin) -> None:
    created = await admin.post(f"/tenants/{(await new_tenant(admin))['id']}/keys", {})
    assert (created["name"], created["scopes"], created["models"], created["expires_at"]) == ("", None, None, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["chat", "root"]}, "scopes[1]"),
        ({"models": [""]}, "models[0]"),
        ({"models": ["a\u0000"]}, "models[0]"),
        ({"name": "a" * 129}, "name"),
        ({"expires_at": "2026-01-02T11:59:59Z"}, "expires_at"),
        ({"expires_at": "2026-02-30T00:00:00Z"}, "expires_at"),
        ({"expires_at": "2026-01-03"}, "expires_at"),
        ({"expires_at": "0001-01-01T00:00:00+23:59"}, "expires_at"),
        ({"expires_at": 1767441600}, "expires_at"),
        ({"key": "tp-mine"}, "key"),
        ({"tenant_id": UNKNOWN_TENANT}, "tenant_id"),
    ],
)
async def test_a_key_that_cannot_be(admin: Admin, body: dict, param: str) -> None:
    tenant = await new_tenant(admin)
    error = await admin.refused(400, "POST", f"/tenants/{tenant['id']}/keys", json=body)
    assert error["param"] == param
    assert (await admin.get("/keys"))["data"] == []


async def test_rotation_gives_a_successor_and_says_until_when_the_old_key_lives(admin: Admin, clock: Clock) -> None:
    tenant = await new_tenant(admin)
    old = await admin.post(f"/tenants/{tenant['id']}/keys", {"name": "app", "models": ["m"]})
    rotated = await admin.post(f"/keys/{old['id']}/rotate", {"old_valid_until": "2026-01-02T18:00:00Z"})
    successor = rotated["successor"]
    assert rotated["retired"]["expires_at"] == "2026-01-02T18:00:00.000000Z"
    assert rotated["retired"]["rotated_to"] == successor["id"]
    assert (successor["name"], successor["models"], successor["expires_at"]) == ("app", ["m"], None)
    assert parse_key(successor["key"]).public_id == successor["id"]
    again = await admin.refused(409, "POST", f"/keys/{old['id']}/rotate", json={})
    assert again["code"] == "key_not_in_use"

    default = (await admin.post(f"/keys/{successor['id']}/rotate", {}))["retired"]
    assert default["expires_at"].startswith("2026-01-03T12:00:00.")


async def test_an_overlap_without_end(admin: Admin) -> None:
    tenant = await new_tenant(admin)
    old = await admin.post(f"/tenants/{tenant['id']}/keys", {})
    body = {"old_valid_until": "2030-01-01T00:00:00Z"}
    error = await admin.refused(400, "POST", f"/keys/{old['id']}/rotate", json=body)
    assert error["param"] == "old_valid_until"
    assert len((await admin.get("/keys"))["data"]) == 1


async def test_grants_are_replaced_and_a_revocation_is_for_good(admin: Admin, store: TenantWriter) -> None:
    tenant = await new_tenant(admin)
    key = await admin.post(f"/tenants/{tenant['id']}/keys", {"scopes": ["chat"]})
    one = f"/keys/{key['id']}"
    granted = (await admin.request("PUT", f"{one}/grants", json={"models": ["b", "a"]})).json()
    assert (granted["scopes"], granted["models"]) == (None, ["a", "b"])
    revoked = await admin.post(f"{one}/revoke", status=200)
    assert revoked["revoked_at"] is not None
    assert await admin.post(f"{one}/revoke", status=200) == revoked
    assert await store.active_keys([key["id"]]) == {}
    for method, path, body in (("GET", "", None), ("POST", "/revoke", None), ("PUT", "/grants", {})):
        extra = {} if body is None else {"json": body}
        error = await admin.refused(404, method, f"/keys/000000000000{path}", **extra)
        assert error["code"] == "key_not_found"


async def test_limits_are_stated_whole_for_each_scope(admin: Admin) -> None:
    tenant = await new_tenant(admin)
    path = f"/tenants/{tenant['id']}/limits"
    key = await admin.post(f"/tenants/{tenant['id']}/keys", {})
    for body in (
        {"kind": "tenant", "requests_per_minute": 10, "nanodollars_per_month": 2**53 - 1},
        {"kind": "model", "scope_id": "org/m:1", "concurrent": 0},
        {"kind": "key", "scope_id": key["id"], "tokens_per_day": 5},
        {"kind": "tenant", "tokens_per_minute": 7},
    ):
        stated = await admin.request("PUT", path, json=body)
        assert stated.status_code == 200, stated.text
    limits = {each["kind"]: each for each in (await admin.get(path))["data"]}
    assert limits["tenant"]["requests_per_minute"] is None
    assert limits["tenant"]["tokens_per_minute"] == 7
    assert (limits["model"]["scope_id"], limits["model"]["concurrent"]) == ("org/m:1", 0)
    assert limits["key"]["scope_id"] == key["id"]


async def test_a_successors_limits_are_its_predecessors(admin: Admin) -> None:
    tenant = await new_tenant(admin)
    path = f"/tenants/{tenant['id']}/limits"
    old = await admin.post(f"/tenants/{tenant['id']}/keys", {})
    successor = (await admin.post(f"/keys/{old['id']}/rotate", {}))["successor"]
    body = {"kind": "key", "scope_id": successor["id"], "concurrent": 3}
    assert (await admin.request("PUT", path, json=body)).json()["scope_id"] == old["id"]
    assert len((await admin.get(path))["data"]) == 1


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "kind"),
        ({"kind": "user"}, 400, "kind"),
        ({"kind": "tenant", "scope_id": "x"}, 400, "scope_id"),
        ({"kind": "model"}, 400, "scope_id"),
        ({"kind": "key", "scope_id": "000000000000"}, 404, None),
        ({"kind": "tenant", "concurrent": -1}, 400, "concurrent"),
        ({"kind": "tenant", "concurrent": 2**53}, 400, "concurrent"),
        ({"kind": "tenant", "concurrent": 1.0}, 400, "concurrent"),
        ({"kind": "tenant", "concurrent": True}, 400, "concurrent"),
        ({"kind": "tenant", "rpm": 1}, 400, "rpm"),
    ],
)
async def test_limits_that_cannot_be(admin: Admin, body: dict, status: int, param: str | None) -> None:
    tenant = await new_tenant(admin)
    error = await admin.refused(status, "PUT", f"/tenants/{tenant['id']}/limits", json=body)
    assert error["param"] == param


async def test_limits_of_another_tenants_key(admin: Admin) -> None:
    one, other = await new_tenant(admin, "one"), await new_tenant(admin, "other")
    key = await admin.post(f"/tenants/{other['id']}/keys", {})
    body = {"kind": "key", "scope_id": key["id"], "concurrent": 0}
    error = await admin.refused(404, "PUT", f"/tenants/{one['id']}/limits", json=body)
    assert error["code"] == "key_not_found"


async def test_time_stands_in_utc(clock: Clock, admin: Admin) -> None:
    clock.now += timedelta(hours=11, minutes=59)
    assert (await new_tenant(admin))["created_at"].startswith("2026-01-02T23:59:")
