"""Administrators' keys through the API."""

import pytest

from gateway.tenancy.keys import ADMIN_PREFIX, parse_key
from tests.gateway.admin.harness import Admin


async def test_a_key_is_shown_once_works_and_is_revoked(admin: Admin) -> None:
    once = {"idempotency-key": "one"}
    created = await admin.post("/admin-keys", {"name": "Ada", "role": "billing"}, headers=once)
    key = parse_key(created["key"], ADMIN_PREFIX)
    assert (created["id"], created["last_four"], created["role"]) == (key.public_id, key.last_four, "billing")
    again = await admin.post("/admin-keys", {"name": "Ada", "role": "billing"}, headers=once)
    assert again == created | {"key": None}

    admin.keys["ada"] = created["key"]
    listed = (await admin.get("/admin-keys", "ada"))["data"]
    assert all("key" not in each and "digest" not in each for each in listed)
    assert next(each for each in listed if each["id"] == key.public_id)["last_used_at"] is not None

    revoked = await admin.post(f"/admin-keys/{key.public_id}/revoke", status=200)
    assert revoked["revoked_at"] is not None
    assert await admin.post(f"/admin-keys/{key.public_id}/revoke", status=200) == revoked
    in_use = (await admin.get("/admin-keys", params={"revoked": "false"}))["data"]
    assert key.public_id not in [each["id"] for each in in_use]
    told = (await admin.get("/audit", params={"resource_id": key.public_id}))["data"]
    assert [each["action"] for each in told] == ["revoke", "create"]
    assert created["key"] not in str(told)


async def test_no_key_revokes_itself(admin: Admin) -> None:
    own = admin.keys["admin"].split("-")[1]
    assert (await admin.refused(409, "POST", f"/admin-keys/{own}/revoke"))["code"] == "own_key"
    await admin.get("/admin-keys")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"role": "admin"}, "name"),
        ({"name": "Ada"}, "role"),
        ({"name": "", "role": "admin"}, "name"),
        ({"name": "x" * 129, "role": "admin"}, "name"),
        ({"name": "Ada", "role": "root"}, "role"),
    ],
)
async def test_invalid_keys_are_refused_by_field(admin: Admin, body: dict, param: str) -> None:
    assert (await admin.refused(400, "POST", "/admin-keys", json=body))["param"] == param


async def test_an_unknown_key_is_404(admin: Admin) -> None:
    assert (await admin.refused(404, "POST", "/admin-keys/000000000000/revoke"))["code"] == "key_not_found"
