"""Lists by pages: every item once, whatever happens in between."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.errors import APIError
from gateway.management.operations.paging import Cursors
from tests.gateway.admin.harness import Admin
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 200])
async def test_every_item_once(admin: Admin, store: TenantWriter, limit: int) -> None:
    for name in "hbdfacge":
        await store.create_tenant(name, "standard")
    for _ in range(8):
        await store.create_key("d")
    assert [each["name"] for each in await admin.every("/tenants", limit)] == list("abcdefgh")
    assert [each["id"] for each in await admin.every("/keys", limit)] == [
        each.public_id for each in await store.list_keys("d")
    ]


async def test_what_comes_and_goes_in_between_moves_nothing_else(admin: Admin, store: TenantWriter) -> None:
    for name in "bdfh":
        await store.create_tenant(name, "standard")
    first = await admin.get("/tenants", params={"limit": 2})
    await store.create_tenant("a", "standard")
    await store.create_tenant("g", "standard")
    rest = await admin.get("/tenants", params={"limit": 200, "cursor": first["next_cursor"]})
    assert [each["name"] for each in first["data"] + rest["data"]] == list("bdfgh")


async def test_keys_made_at_the_same_instant_are_told_once(admin: Admin, store: TenantWriter, clock) -> None:
    await store.create_tenant("acme", "standard")
    still = TenantWriter(store._database, PEPPER, now=lambda: clock.now)
    made = {(await still.create_key("acme")).record.public_id for _ in range(5)}
    listed = [each["id"] for each in await admin.every("/keys", 2)]
    assert (len(listed), set(listed)) == (5, made)


async def test_a_cursor_is_for_its_list_and_its_filters(admin: Admin, store: TenantWriter) -> None:
    ids = {}
    for name in "ab":
        ids[name] = (await store.create_tenant(name, "standard")).id
        for _ in range(3):
            await store.create_key(name)
    cursor = (await admin.get("/keys", params={"limit": 1, "tenant_id": ids["a"]}))["next_cursor"]
    assert await admin.get("/keys", params={"cursor": cursor, "tenant_id": ids["a"]})
    for path, params in (
        ("/keys", {}),
        ("/keys", {"tenant_id": ids["b"]}),
        ("/tenants", {}),
        ("/audit", {"tenant_id": ids["a"]}),
        (f"/tenants/{ids['a']}/limits", {}),
    ):
        error = await admin.refused(400, "GET", path, params=params | {"cursor": cursor})
        assert error["param"] == "cursor"


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_no_cursor_can_be_made_up(text: str) -> None:
    with pytest.raises(APIError) as refusal:
        Cursors(PEPPER).read("keys", text)
    assert (refusal.value.status, refusal.value.param) == (400, "cursor")


@given(st.lists(st.integers(0, 2**53) | st.text(max_size=20), min_size=1, max_size=3), st.data())
def test_a_cursor_says_what_was_written_and_an_altered_one_nothing(position: list, data: st.DataObject) -> None:
    cursors = Cursors(PEPPER)
    written = cursors.write("keys", position)
    assert cursors.read("keys", written) == position
    at = data.draw(st.integers(0, len(written) - 2))  # of the last character some bits mean nothing
    altered = written[:at] + ("A" if written[at] != "A" else "B") + written[at + 1 :]
    with pytest.raises(APIError) as refusal:
        cursors.read("keys", altered)
    assert refusal.value.param == "cursor"
