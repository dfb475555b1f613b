"""A tenant's page calls the gateway's own endpoint: as that tenant alone, and from our page alone."""

import pytest

from gateway.management.console.headers import CONTENT_SECURITY_POLICY
from gateway.management.console.login import SESSION_COOKIE
from gateway.management.console.own_requests import CSRF_HEADER
from tests.console.house import ACME, GLOBEX, ORIGIN, House

PATH = "/console/playground/completions"
QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Hello?"}]}


async def ask(console: House, who: str, headers: dict[str, str] | None = None, **body: object):
    given = {"origin": ORIGIN, CSRF_HEADER: console.csrf(who), "cookie": f"{SESSION_COOKIE}={console.token(who)}"}
    return await console.http.post(PATH, json=QUESTION | body, headers=given | (headers or {}))


async def test_a_tenants_page_is_answered_as_the_tenant(console: House) -> None:
    for name in (ACME, GLOBEX):
        answer = await ask(console, name)
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"] == console.engine.reply
    assert [call.tenant for call in console.engine.calls] == [console.tenant[name].id for name in (ACME, GLOBEX)]
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({CSRF_HEADER: ""}, 403),
        ({CSRF_HEADER: "x"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"cookie": ""}, 401),
        ({"cookie": f"{SESSION_COOKIE}=x"}, 401),
    ],
)
async def test_nothing_else_gets_through(console: House, headers: dict[str, str], status: int) -> None:
    answer = await ask(console, ACME, headers)
    assert (answer.status_code, answer.json().keys()) == (status, {"error"})
    assert answer.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert console.engine.calls == []


async def test_a_key_of_ones_own_in_a_header_changes_nothing(console: House) -> None:
    bearer = {"authorization": f"Bearer {console.keys[GLOBEX]}"}
    assert (await ask(console, ACME, bearer)).status_code == 200
    assert console.engine.calls[0].tenant == console.tenant[ACME].id


async def test_it_is_not_for_administrators_nor_for_reading(console: House) -> None:
    assert (await ask(console, "admin")).status_code == 403
    cookie = {"cookie": f"{SESSION_COOKIE}={console.token(ACME)}"}
    assert (await console.http.get(PATH, headers=cookie)).status_code == 405
    assert console.engine.calls == []


async def test_errors_are_those_of_the_api(console: House) -> None:
    answer = await ask(console, ACME, model="unheard-of")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


async def test_a_key_that_was_revoked_asks_nothing_more(console: House) -> None:
    created = await console.tenants.create_key(ACME, "short-lived")
    console.keys["short-lived"] = created.plaintext
    await console.tenants.revoke_key(created.record.public_id)
    assert (await ask(console, "short-lived")).status_code == 401


async def test_a_key_that_is_not_for_chats_does_not_chat_here_either(console: House) -> None:
    operations = console.admin.operations
    administrator = await console.admin.authenticate(console.keys["admin"])
    for scope, status, first in (("usage", 403, "/console"), ("chat", 200, "/console/playground")):
        path = {"tenant_id": console.tenant[ACME].id}
        created = await operations.change("createKey", administrator, "req_1", path, {"scopes": [scope]})
        console.keys[scope] = created["key"]
        assert (await ask(console, scope)).status_code == status
        login = await console.http.post("/console/login", data={"key": created["key"]})
        assert login.headers["location"] == first
