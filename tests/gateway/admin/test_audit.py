"""The audit log: complete, true, append-only."""

from decimal import Decimal

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from gateway.management.http.app import AdminApp
from gateway.management.operations.change import COMMAND_LINE, SETTINGS, Changes, command_line_actor
from gateway.management.operations.context import AdminContext
from gateway.management.operations.local import current_user
from gateway.management.operations.prices import declare_prices
from gateway.management.operations.tables import AuditRow
from gateway.process.serving import make_demo_key
from tests.gateway.admin.harness import Admin


async def lines(admin: Admin, **params: str) -> list[dict]:
    return (await admin.get("/audit", params=params))["data"]


async def busy(admin: Admin) -> tuple[dict, dict]:
    """A tenant and a key with a history."""
    tenant = await admin.post("/tenants", {"name": "acme", "tier": "premium"}, headers={"x-request-id": "r-1"})
    one = f"/tenants/{tenant['id']}"
    await admin.request("PATCH", one, json={"tier": "standard"})
    key = await admin.post(f"{one}/keys", {"name": "ci"})
    await admin.request("PUT", f"{one}/limits", json={"kind": "tenant", "concurrent": 3})
    await admin.request("PUT", f"/keys/{key['id']}/grants", json={"scopes": ["chat"]})
    await admin.post(f"/keys/{key['id']}/rotate", {})
    await admin.post(f"/keys/{key['id']}/revoke", status=200)
    await admin.post(f"{one}/suspend", status=200)
    return tenant, key


async def test_every_change_is_told_with_what_was_before_and_after(admin: Admin) -> None:
    tenant, key = await busy(admin)
    told = await lines(admin)
    assert [(each["action"], each["resource"]) for each in reversed(told)] == [
        *[("create", "admin_key")] * 3,
        ("create", "tenant"),
        ("update", "tenant"),
        ("create", "key"),
        ("replace", "limits"),
        ("set_grants", "key"),
        ("rotate", "key"),
        ("create", "key"),
        ("revoke", "key"),
        ("suspend", "tenant"),
    ]
    assert [each["sequence"] for each in told] == list(range(len(told), 0, -1))
    created, updated = told[-4], told[-5]
    assert (created["before"], created["after"]) == (None, tenant)
    assert (updated["before"], updated["after"]) == (tenant, tenant | {"tier": "standard"})
    assert created["actor"] == admin.keys["admin"].split("-")[1]
    assert (created["request_id"], created["tenant_id"]) == ("r-1", tenant["id"])
    assert created["at"] > tenant["created_at"][:-8]
    grants = next(each for each in told if each["action"] == "set_grants")
    assert grants["resource_id"] == key["id"]
    assert (grants["before"]["scopes"], grants["after"]["scopes"]) == (None, ["chat"])


async def test_making_an_administrators_key_is_told_too(admin: Admin) -> None:
    told = await lines(admin, resource="admin_key")
    assert {each["actor"] for each in told} == {COMMAND_LINE}
    assert {each["after"]["role"] for each in told} == {"admin", "billing", "viewer"}


async def test_what_changed_nothing_is_not_told(admin: Admin) -> None:
    tenant = await admin.post("/tenants", {"name": "acme", "tier": "premium"})
    before = await lines(admin)
    one = f"/tenants/{tenant['id']}"
    await admin.post(f"{one}/resume", status=200)
    await admin.request("PATCH", one, json={"tier": "premium"})
    await admin.request("PUT", f"{one}/limits", json={"kind": "tenant"})
    await admin.refused(409, "POST", "/tenants", json={"name": "acme", "tier": "premium"})
    assert await lines(admin) == before


async def test_it_never_holds_a_secret(admin: Admin) -> None:
    _, key = await busy(admin)
    secrets = [value.rpartition("-")[2] for value in (key["key"], *admin.keys.values())]
    told = (await admin.request("GET", "/audit")).text
    assert not any(secret in told for secret in secrets)
    assert "digest" not in told


async def test_it_is_found_by_who_what_and_when(admin: Admin) -> None:
    tenant, key = await busy(admin)
    every = await lines(admin)
    middle = every[5]["at"]
    for params, wanted in (
        ({"actor": COMMAND_LINE}, lambda each: each["actor"] == COMMAND_LINE),
        ({"tenant_id": tenant["id"]}, lambda each: each["tenant_id"] == tenant["id"]),
        ({"resource": "key", "resource_id": key["id"]}, lambda each: each["resource_id"] == key["id"]),
        ({"action": "rotate"}, lambda each: each["action"] == "rotate"),
        ({"since": middle}, lambda each: each["at"] >= middle),
        ({"until": middle}, lambda each: each["at"] < middle),
    ):
        expected = [each for each in every if wanted(each)]
        assert 0 < len(expected) < len(every)
        assert await lines(admin, **params) == expected


@pytest.mark.parametrize(
    "statement",
    ["UPDATE audit_log SET actor = 'x'", "DELETE FROM audit_log", "DELETE FROM audit_log WHERE sequence = 1"],
)
async def test_the_database_refuses_to_change_it(admin: Admin, context: AdminContext, statement: str) -> None:
    before = await lines(admin)
    with pytest.raises(DBAPIError, match="append-only"):
        async with context.database.begin() as connection:
            await connection.execute(text(statement))
    assert await lines(admin) == before


@pytest.mark.parametrize(
    ("tampering", "broken"),
    [
        ("UPDATE audit_log SET actor = 'nobody' WHERE sequence = 3", 3),
        ("UPDATE audit_log SET after = '{}' WHERE sequence = 4", 4),
        ("DELETE FROM audit_log WHERE sequence = 2", 2),
        ("DELETE FROM audit_log WHERE sequence = 1", 1),
        ("UPDATE audit_log SET sequence = 99 WHERE sequence = 6", 6),
        ("SELECT 1", None),
    ],
)
async def test_whoever_takes_the_triggers_away_is_still_noticed(
    admin: Admin, context: AdminContext, tampering: str, broken: int | None
) -> None:
    await busy(admin)
    async with context.database.begin() as connection:
        if connection.dialect.name == "sqlite":
            for name in ("update", "delete"):
                await connection.execute(text(f"DROP TRIGGER audit_log_refuses_{name}"))
        else:
            await connection.execute(text("DROP TRIGGER audit_log_is_append_only ON audit_log"))
        await connection.execute(text(tampering))
    assert await admin.get("/audit/verification") == {"first_broken": broken}


async def test_prices_that_settings_declare_are_told_once(context: AdminContext) -> None:
    changes = Changes(context.database, context.pepper, context.now)
    for _ in range(2):
        await declare_prices(changes, {"m": [Decimal("0.15"), Decimal("0.60")]})
    async with context.reading() as connection:
        (entry,) = (await connection.execute(select(AuditRow.actor, AuditRow.action, AuditRow.resource))).all()
    assert tuple(entry) == (SETTINGS, "create", "price")


async def test_the_demos_tenant_and_key_are_told(context: AdminContext) -> None:
    app = AdminApp(context)
    await make_demo_key(app, "standard")
    await make_demo_key(app, "standard")
    await app.aclose()
    query = select(AuditRow.actor, AuditRow.resource).order_by(AuditRow.sequence)
    async with context.reading() as connection:
        entries = (await connection.execute(query)).all()
    assert [entry.resource for entry in entries] == ["tenant", "key", "key"]
    assert {entry.actor for entry in entries} == {command_line_actor(current_user())}
