"""The same request under the same Idempotency-Key has one effect."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from sqlalchemy import event, text

from gateway.http.access import AccessPolicy
from gateway.http.middleware import ErrorMiddleware, MountByPrefix
from gateway.management.http.app import AdminApp
from gateway.management.operations.change import COMMAND_LINE
from gateway.management.operations.context import AdminContext
from gateway.management.operations.routes import PREFIX
from gateway.telemetry.outcomes import RequestOutcomes
from gateway.tenancy import open_database
from tests.gateway.admin.harness import Admin, Clock, elsewhere, unrecorded
from tests.support.tenants import PEPPER

ACME = {"name": "acme", "tier": "premium"}


def under(key: str) -> dict[str, str]:
    return {"idempotency-key": key}


async def test_a_repetition_gets_the_same_answer_and_has_no_effect(admin: Admin) -> None:
    first = await admin.request("POST", "/tenants", json=ACME, headers=under("k"))
    again = await admin.request("POST", "/tenants", json=ACME, headers=under("k"))
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len((await admin.get("/audit", params={"resource": "tenant"}))["data"]) == 1


async def test_the_order_and_spacing_of_members_do_not_matter(admin: Admin) -> None:
    json = {"content-type": "application/json"}
    bodies = (b'{"name":"acme","tier":"premium"}', b' { "tier" : "premium", "name" : "acme" } ')
    first, again = [await admin.request("POST", "/tenants", content=body, headers=json | under("k")) for body in bodies]
    assert first.json() == again.json()


async def test_a_key_stands_for_one_request(admin: Admin) -> None:
    tenant = await admin.post("/tenants", ACME, headers=under("k"))
    one = f"/tenants/{tenant['id']}"
    for method, path, body in (
        ("POST", "/tenants", ACME | {"name": "other"}),
        ("POST", f"{one}/suspend", None),
        ("PATCH", one, {"tier": "standard"}),
    ):
        extra = {} if body is None else {"json": body}
        error = await admin.refused(409, method, path, headers=under("k"), **extra)
        assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")
    assert await admin.get(one) == tenant


async def test_administrators_have_keys_of_their_own(admin: Admin, context: AdminContext) -> None:
    from gateway.management.operations.admin_keys import AdminKeyStore
    from gateway.management.operations.roles import Role

    created = await AdminKeyStore(context.database, PEPPER, now=context.now).create("second", Role.ADMIN, COMMAND_LINE)
    admin.keys["second"] = created.plaintext
    await admin.post("/tenants", ACME, headers=under("k"))
    other = await admin.post("/tenants", ACME | {"name": "other"}, role="second", headers=under("k"))
    assert other["name"] == "other"


async def test_a_refusal_is_not_kept(admin: Admin) -> None:
    """It changed nothing, and what was wrong may have been put right since."""
    tenant = await admin.post("/tenants", ACME)
    key = await admin.post(f"/tenants/{tenant['id']}/keys", {})
    path = f"/keys/{key['id']}/rotate"
    far = {"old_valid_until": "2030-01-01T00:00:00Z"}
    await admin.refused(400, "POST", path, json=far, headers=under("k"))
    await admin.post(path, {}, headers=under("k"))


async def test_a_repetition_has_no_secret_and_neither_has_the_database(admin: Admin, context: AdminContext) -> None:
    tenant = await admin.post("/tenants", ACME)
    path = f"/tenants/{tenant['id']}/keys"
    first = await admin.post(path, {"name": "ci"}, headers=under("a"))
    again = await admin.post(path, {"name": "ci"}, headers=under("a"))
    assert first["key"].startswith(f"tp-{first['id']}-")
    assert again == first | {"key": None}
    rotated = await admin.post(f"/keys/{first['id']}/rotate", {}, headers=under("b"))
    replayed = await admin.post(f"/keys/{first['id']}/rotate", {}, headers=under("b"))
    assert replayed == rotated | {"successor": rotated["successor"] | {"key": None}}
    secrets = [each["key"].rpartition("-")[2] for each in (first, rotated["successor"])]
    async with context.database.connect() as connection:
        for table in ("idempotent_requests", "audit_log", "api_keys"):
            for row in (await connection.execute(text(f"SELECT * FROM {table}"))).all():
                assert not any(secret in str(row) for secret in secrets)


async def test_a_hundred_at_once_have_one_effect(admin: Admin) -> None:
    responses = await asyncio.gather(
        *(admin.request("POST", "/tenants", json=ACME, headers=under("k")) for _ in range(100))
    )
    assert {(each.status_code, each.content) for each in responses} == {(201, responses[0].content)}
    assert sum("idempotent-replayed" not in each.headers for each in responses) == 1
    assert len((await admin.get("/tenants"))["data"]) == 1
    assert len((await admin.get("/audit", params={"resource": "tenant"}))["data"]) == 1


async def test_gateways_that_share_a_database_act_once(admin: Admin, context: AdminContext, database_url: str) -> None:
    database = open_database(database_url)
    second = AdminApp(replace(context, database=database))
    transport = httpx.ASGITransport(
        ErrorMiddleware(MountByPrefix(elsewhere, PREFIX, second), RequestOutcomes(), unrecorded, AccessPolicy())
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://turnpike") as http:
        both = [admin, Admin(second, http, admin.keys)]
        responses = await asyncio.gather(
            *(each.request("POST", "/tenants", json=ACME, headers=under("k")) for each in both * 10)
        )
    await second.aclose()
    await database.dispose()
    assert {(each.status_code, each.content) for each in responses} == {(201, responses[0].content)}
    assert sum("idempotent-replayed" not in each.headers for each in responses) == 1


async def test_a_crash_leaves_nothing_or_the_answer(admin: Admin, context: AdminContext, clock: Clock) -> None:
    """Effect, log and answer are in one transaction: whichever statement fails, all of it is gone. A new process then
    finds what was committed."""
    statements: list[str] = []
    fail_at = 0

    def fail(connection, cursor, statement, parameters, execution_context, executemany) -> None:
        if statement.split()[0] in ("INSERT", "DELETE") or "UPDATE tenants" in statement:
            statements.append(statement)
            if len(statements) == fail_at:
                raise OSError("pulled the plug")

    await admin.get("/tenants")  # so that the key's last use is written already
    event.listen(context.database.sync_engine, "before_cursor_execute", fail)
    for fail_at in range(1, 5):
        statements.clear()
        await admin.refused(503, "POST", "/tenants", json=ACME, headers=under("k"))
        assert len(statements) == fail_at
    event.remove(context.database.sync_engine, "before_cursor_execute", fail)
    assert [each.split()[2].strip('"') for each in statements] == [
        "idempotent_requests",
        "tenants",
        "idempotent_requests",
        "audit_log",
    ]
    assert (await admin.get("/tenants"))["data"] == []
    assert (await admin.get("/audit", params={"resource": "tenant"}))["data"] == []

    first = await admin.request("POST", "/tenants", json=ACME, headers=under("k"))
    restarted = AdminApp(context)
    transport = httpx.ASGITransport(
        ErrorMiddleware(MountByPrefix(elsewhere, PREFIX, restarted), RequestOutcomes(), unrecorded, AccessPolicy())
    )
    async with httpx.AsyncClient(transport=transport, base_url="http://turnpike") as http:
        again = await Admin(restarted, http, admin.keys).request("POST", "/tenants", json=ACME, headers=under("k"))
    await restarted.aclose()
    assert (first.status_code, first.content) == (again.status_code, again.content) == (201, first.content)


async def test_a_key_is_kept_for_a_day(admin: Admin, clock: Clock) -> None:
    await admin.post("/tenants", ACME, headers=under("k"))
    clock.now += timedelta(hours=23, minutes=59)
    await admin.post("/tenants", ACME, headers=under("k"))
    clock.now += timedelta(minutes=2)
    error = await admin.refused(409, "POST", "/tenants", json=ACME, headers=under("k"))
    assert error["code"] == "tenant_exists"


@pytest.mark.parametrize("key", ["", " ", "a b", "é", "x" * 256])
async def test_a_key_that_cannot_be(admin: Admin, key: str) -> None:
    headers = {"idempotency-key": key.encode()}
    error = await admin.refused(400, "POST", "/tenants", json=ACME, headers=headers)
    assert error["param"] == "Idempotency-Key"
