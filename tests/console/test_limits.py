"""Limits in the console: stated, used, held."""

import pytest

from gateway.admission import Demand, Measure, Quota, Scope
from gateway.management.console.limits import WORDS
from gateway.tenancy import ScopeKind
from tests.console.house import House


def limits_of(console: House, whose: str = "acme") -> str:
    return f"/tenants/{console.tenant[whose].id}/limits"


def demand(console: House, limit: int) -> Demand:
    scope = Scope(console.tenant["acme"].id, ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY)
    return Demand(Quota(scope, limit), 0, 1)


def rows(page: str, caption: str) -> list[str]:
    """The rows of a table as text, a space between cells."""
    table = page.split(f"<caption>{caption}</caption>")[1].split("</table>")[0]
    cells = [row.split("<td") for row in table.split("<tr>")[2:]]
    return [" ".join(text for cell in row[1:] for text in _texts("<td" + cell)) for row in cells]


def _texts(html: str) -> list[str]:
    return [each.split(">")[-1].strip() for each in html.split("<") if each.split(">")[-1].strip()]


def test_every_counter_has_words() -> None:
    assert set(Measure) <= WORDS.keys()


async def test_what_is_used_held_and_left_and_when_it_comes_back(console: House) -> None:
    path = limits_of(console)
    stated = await console.post(path, "state", kind="tenant", tokens_per_day="1000", dollars_per_month="2.5")
    assert stated.status_code == 303
    wanted = demand(console, 1000)
    hold = await console.services.limiter.hold("first", (wanted,), minimum_tokens=1, desired_tokens=90)
    await console.services.limiter.settle(hold, 30)
    await console.services.limiter.hold("second", (wanted,), minimum_tokens=1, desired_tokens=400)
    for who in ("admin", "viewer"):
        day, month = rows(await console.page(path, who), "Current use")
        assert day.startswith("the tenant Tokens a day (UTC) 1,000 430 400 570 in ")
        assert month.startswith("the tenant Dollars a month (UTC) $2.50 $0.00 $0.00 $2.50")
    (row, other) = rows(await console.page("/limits", "viewer"), "Tenants, each with the counter nearest to its limit")
    assert row.startswith("acme standard Tokens a day (UTC) 1,000 430 400")
    assert other == "globex standard no limits"


async def test_limits_of_a_scope_are_stated_all_at_once_and_changed(console: House) -> None:
    path, key = limits_of(console), console.keys["acme"].split("-")[1]
    await console.post(path, "state", kind="key", scope_id=key, requests_per_minute="5", concurrent="2")
    await console.post(path, "state", kind="model", scope_id="tiny", context_tokens="64")
    assert rows(await console.page(path), "Limits that are set") == [
        f"key first ({key}) Requests a minute 5 Requests at once 2 Change",
        "model tiny Tokens of a context 64 Change",
    ]
    form = (await console.page(f"{path}?kind=key&scope_id={key}")).split('id="state"')[1]
    assert '<option value="key" selected>' in form
    assert f'value="{key}"' in form
    assert f'<option value="{key}">first ({key})</option>' in form, "picked, not typed"
    assert 'name="requests_per_minute" value="5"' in form
    await console.post(path, "state", kind="key", scope_id=key, concurrent="3")
    assert rows(await console.page(path), "Limits that are set")[0] == f"key first ({key}) Requests at once 3 Change"


@pytest.mark.parametrize(
    ("fields", "at_fault"),
    [
        ({"tokens_per_day": "many"}, "tokens_per_day"),
        ({"tokens_per_day": "-1"}, "tokens_per_day"),
        ({"dollars_per_month": "1,5"}, "dollars_per_month"),
        ({"dollars_per_month": "-1"}, "dollars_per_month"),
        ({"scope_id": "tiny"}, "scope_id"),
        ({"kind": "world"}, "kind"),
        ({"kind": "key", "scope_id": "nobodyskey00"}, "scope_id"),
    ],
)
async def test_an_invalid_limit_keeps_the_input(console: House, fields: dict[str, str], at_fault: str) -> None:
    path = limits_of(console)
    answer = await console.post(path, "state", **{"kind": "tenant", "requests_per_minute": "77"} | fields)
    assert answer.status_code == 400
    assert f'class="note error" id="state-{at_fault}-note"' in answer.text
    assert 'name="requests_per_minute" value="77"' in answer.text
    assert "No limits are set" in await console.page(path)


async def test_a_tenant_sees_its_own_limits_and_not_those_of_its_other_keys(console: House) -> None:
    path, key = limits_of(console), console.keys["acme"].split("-")[1]
    other = (await console.tenants.create_key("acme", "other")).record.public_id
    await console.post(limits_of(console, "globex"), "state", kind="tenant", tokens_per_day="4321")
    await console.post(path, "state", kind="tenant", tokens_per_day="1000")
    for each in (key, other):
        await console.post(path, "state", kind="key", scope_id=each, requests_per_minute="5")
    page = await console.page("/limits", "acme")
    assert [row.split(" in ")[0] for row in rows(page, "Current use")] == [
        "the tenant Tokens a day (UTC) 1,000 0 0 1,000 –",
        f"key {key} Requests a minute 5 0 0 5 –",
    ]
    assert sorted(rows(page, "Limits that are set")) == [
        f"key {key} Requests a minute 5",
        "the tenant Tokens a day (UTC) 1,000",
    ]
    assert other not in page
    assert "4,321" not in page
    assert 'name="act"' not in page
