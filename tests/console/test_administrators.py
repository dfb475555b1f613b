"""The page of users: administrators' keys."""

import re

from tests.console.house import House
from tests.console.html import rows

SECRET = re.compile(r'id="secret"[^>]*>(tpa-[^<]*)<')


async def test_a_user_is_added_with_a_key_shown_once_and_revoked(console: House) -> None:
    fields = {"name": "Ada", "role": "viewer", "once": "a-rendering"}
    shown = await console.post("/users", "create", **fields)
    (secret,) = SECRET.findall(shown.text)
    assert shown.status_code == 201
    assert secret not in (await console.post("/users", "create", **fields)).text
    login = await console.http.post("/console/login", data={"key": secret})
    assert login.status_code == 303
    (row,) = (row for row in rows(await console.page("/users"), "Users") if row[0] == "Ada")
    assert (row[1], row[3]) == ("viewer", "active")

    key_id = secret.split("-")[1]
    assert (await console.post("/users", "revoke", form=key_id)).status_code == 303
    assert key_id not in await console.page("/users")
    (row,) = rows(await console.page("/users?revoked=true"), "Users")
    assert (row[0], row[3]) == ("Ada", "revoked")


async def test_one_cannot_revoke_oneself_or_add_without_a_role(console: House) -> None:
    own = console.keys["admin"].split("-")[1]
    assert (await console.post("/users", "revoke", form=own)).status_code == 409
    refused = await console.post("/users", "create", name="", role="viewer")
    assert (refused.status_code, 'id="create-name-note"' in refused.text) == (400, True)
    assert (await console.post("/users", "create", "billing", name="Eve", role="admin")).status_code == 403
    assert "Eve" not in await console.page("/users")


async def test_only_who_may_change_users_sees_the_forms(console: House) -> None:
    for who in ("billing", "viewer"):
        page = await console.page("/users", who)
        assert 'name="act"' not in page
        assert "the admin" in page
    assert (await console.get("/users", "acme")).status_code == 403
