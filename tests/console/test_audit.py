"""The audit log in the console: what changed, by whom, and whether it is as it was written."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from gateway.management.console.audit import Difference, differences
from tests.console.house import House


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 1, "b": None}, {"a": 2, "b": None}, [("a", "1", "2")]),
        (None, {"a": "x", "b": None}, [("a", None, "x")]),
        ({"a": "x"}, None, [("a", "x", None)]),
        ({"a": []}, {"a": [{"b": 1}]}, [("a", "[]", None), ("a[0].b", None, "1")]),
        ({"a": {"b": True}}, {"a": {"b": False}}, [("a.b", "true", "false")]),
        ({"a": None}, {"a": 0}, [("a", "null", "0")]),
    ],
)
def test_a_difference_names_what_changed_and_nothing_else(before: dict, after: dict, found: list[tuple]) -> None:
    assert differences(before, after) == [Difference(*each) for each in found]


async def test_who_did_what_from_what_to_what(console: House) -> None:
    tenant = console.tenant["acme"].id
    await console.post(f"/tenants/{tenant}", "move", tier="premium")
    page = await console.page("/audit", "viewer")
    entry = page.split("<tbody>")[1].split("</tr>")[0]
    ids = (f'title="{console.keys["admin"].split("-")[1]}"', f'data-copy-text="{tenant}"')
    for said in (*ids, "the admin", ">acme</a>", "update", "<del>standard</del>", "<ins>premium</ins>"):
        assert said in entry
    assert "suspended_at" not in entry
    assert (await console.get("/audit", "billing")).status_code == 403


async def test_the_log_is_filtered(console: House) -> None:
    for name in ("acme", "globex"):
        await console.post(f"/tenants/{console.tenant[name].id}", "suspend")
    await console.post(f"/tenants/{console.tenant['acme'].id}", "resume")
    for query, entries in (
        ("action=suspend", 2),
        (f"tenant_id={console.tenant['acme'].id}", 2),
        ("resource=tenant&action=resume", 1),
        ("since=2099-01-01T00:00", 0),
        ("until=2099-01-01T00:00&action=suspend", 2),
        ("actor=nobody", 0),
        ("tenant_id=globex", 1),
    ):
        assert (await console.page(f"/audit?{query}")).count("<details>") == entries, query
    assert '<option value="suspend" selected>' in await console.page("/audit?action=suspend")


async def test_pages_follow_one_another_without_a_gap(console: House) -> None:
    path = f"/tenants/{console.tenant['acme'].id}"
    for number in range(51):
        await console.post(path, "resume" if number % 2 else "suspend")
    first = await console.page("/audit?resource=tenant")
    following = first.split('class="pager"')[1].split('href="/console')[1].split('"')[0].replace("&amp;", "&")
    second = await console.page(following)
    assert (first.count("<details>"), second.count("<details>")) == (50, 1)


async def test_the_chain_is_verified(console: House, tmp_path: Path) -> None:
    await console.post(f"/tenants/{console.tenant['acme'].id}", "suspend")
    assert "as it was written: no line" in await console.page("/audit/verification", "viewer")
    with closing(sqlite3.connect(tmp_path / "turnpike.db")) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit_log'")
        for (name,) in names.fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute("UPDATE audit_log SET actor = 'somebodyelse' WHERE sequence = 2")
        database.commit()
    assert "Line 2 is not as it was written" in await console.page("/audit/verification", "viewer")
