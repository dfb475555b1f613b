"""Prices, usage, invoices, credit and costs through the API, over real stores."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert

from gateway.analytics import Analytics, open_analytics
from gateway.analytics.prepared import PreparedAnalytics
from gateway.billing.prices import Price
from gateway.billing.tables import InvoiceRow
from gateway.metering.event import COLUMNS, Ending, UsageEvent
from gateway.metering.journal.journal import Journal
from tests.gateway.admin.harness import NOON, Admin, AwayAnalytics, Clock
from tests.support.billing import an_event

DECEMBER = datetime(2025, 12, 15, 12, 30, tzinfo=UTC)
TERMS = {"model": "m", "input": "0.15", "cached_input": "0.075", "output": "0.6", "multipliers": []}


@pytest.fixture
async def analytics(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Analytics]:
    store = PreparedAnalytics(open_analytics(f"chdb://{tmp_path / 'analytics'}"))
    yield store
    await store.aclose()


async def store(analytics: Analytics, *events: UsageEvent) -> None:
    rows = [[getattr(event, name) for name in COLUMNS] for event in events]
    column = COLUMNS.index("recompute_ns")
    for row in rows:
        row[column] = dict(row[column])
    await analytics.insert("usage_events", COLUMNS, rows)


async def priced(admin: Admin) -> tuple[str, Price]:
    """A tenant, and what a model has cost since before December."""
    tenant = await admin.post("/tenants", {"name": "acme", "tier": "standard"})
    version = await admin.post("/prices", TERMS | {"effective_from": "2025-11-01T00:00:00Z"}, role="billing")
    return tenant["id"], Price(version["id"], 150, 75, 600)


async def test_a_price_is_told_exactly_and_never_changed(admin: Admin) -> None:
    first = await admin.post("/prices", TERMS, role="billing")
    assert (first["model"], first["input_nanodollars_per_token"], first["input_dollars_per_million"]) == (
        "m",
        150,
        "0.15",
    )
    assert first["effective_from"].startswith("2026-01-02T12:00:00.")
    assert {each["tier"]: each["multiplier"] for each in first["multipliers"]}["premium"] == "3"
    past = TERMS | {"effective_from": "2025-01-01T00:00:00Z"}
    error = await admin.refused(409, "POST", "/prices", json=past)
    assert (error["code"], error["param"]) == ("price_refused", "effective_from")
    later = await admin.post("/prices", TERMS | {"effective_from": "2026-02-01T00:00:00Z", "output": "1"})
    other = await admin.post("/prices", TERMS | {"model": "a"})
    assert [each.pop("served") for each in (first, later, other)] == [None, None, None]
    assert await admin.every("/prices", 1) == [other, first, later]
    assert (await admin.get("/prices", params={"model": "m"}))["data"] == [first, later]
    told = (await admin.get("/audit", params={"resource": "price"}))["data"]
    assert [each["after"] for each in told] == [other, later, first]


@pytest.mark.parametrize(
    ("changes", "status", "param"),
    [
        ({"input": "0.15001"}, 400, "input"),
        ({"input": "-1"}, 400, "input"),
        ({"input": 0.15}, 400, "input"),
        ({"input": "1e3"}, 400, "input"),
        ({"cached_input": "0.3"}, 400, "cached_input"),
        ({"multipliers": [{"tier": "premium", "multiplier": "1.3333333"}]}, 400, "multipliers"),
        ({"multipliers": [{"tier": "premium", "multiplier": "2"}] * 2}, 400, "multipliers"),
        ({"multipliers": [{"tier": "premium"}]}, 400, "multipliers[0].multiplier"),
        ({"model": ""}, 400, "model"),
        ({"model": "declared"}, 409, None),
    ],
)
async def test_a_price_that_cannot_be(admin: Admin, changes: dict, status: int, param: str | None) -> None:
    error = await admin.refused(status, "POST", "/prices", json=TERMS | changes)
    assert error["param"] == param
    assert (await admin.get("/prices"))["data"] == []


async def test_usage_is_summed_and_told_apart(admin: Admin, analytics: Analytics) -> None:
    at = NOON - timedelta(minutes=20)
    price = Price("m@1", 150, 75, 600)
    await store(
        analytics,
        an_event("t1", at, price, (10, 0, 1), key_id="k1"),
        an_event("t1", at - timedelta(hours=2), price, (20, 0, 2), key_id="k2"),
        an_event("t2", at, Price("n@1", 1, 1, 1), (40, 0, 4), key_id="k3"),
        an_event("t2", at - timedelta(days=3), price, (80, 0, 8), key_id="k3"),
    )
    day = await admin.get("/usage", "viewer", params={"bucket": "day", "by": "tenant"})
    assert [(each["start"], each["tenant"], each["prompt_tokens"]) for each in day["data"]] == [
        ("2026-01-02T00:00:00.000000Z", "t1", 30),
        ("2026-01-02T00:00:00.000000Z", "t2", 40),
    ]
    hours = (await admin.get("/usage"))["data"]
    assert [(each["start"], each["tenant"], each["events"]) for each in hours] == [
        ("2026-01-02T09:00:00.000000Z", None, 1),
        ("2026-01-02T11:00:00.000000Z", None, 2),
    ]
    assert hours[0]["cost_dollars"] == "0.0000042"
    model = (await admin.get("/usage", params={"model": "n", "by": "key,model"}))["data"]
    assert [(each["key"], each["model"], each["completion_tokens"]) for each in model] == [("k3", "n", 4)]


async def test_requests_are_listed_once_each_the_newest_first(admin: Admin, analytics: Analytics) -> None:
    price = Price("m@1", 150, 75, 600)
    events = [
        an_event(f"t{n % 2}", NOON - timedelta(minutes=n // 3), price, (10, 5, n), sequence=n) for n in range(10, 30)
    ]
    await store(analytics, *events)
    listed = await admin.every("/requests", 3)
    assert sorted(each["completion_tokens"] for each in listed) == list(range(10, 30))
    moments = [each["occurred_at"] for each in listed]
    assert moments == sorted(moments, reverse=True)
    one = listed[0]
    assert one["cost_nanodollars"] == 5 * 150 + 5 * 75 + one["completion_tokens"] * 600
    assert (one["model"], one["finish_reason"]) == ("m", "stop")
    page = await admin.get("/requests", params={"tenant_id": "00000000-0000-0000-0000-000000000000"})
    assert page == {"data": [], "next_cursor": None}
    cursor = (await admin.get("/requests", params={"limit": 1}))["next_cursor"]
    error = await admin.refused(400, "GET", "/requests", params={"cursor": cursor, "model": "m"})
    assert error["param"] == "cursor"


async def test_a_request_is_found_by_its_id_and_told_in_full(admin: Admin, analytics: Analytics) -> None:
    price = Price("m@1", 150, 75, 600)
    told = {"request_id": "chatcmpl-1", "paused_ms": 70, "queue_ms": 9, "recompute_ns": {"premium": 5}, "sequence": 8}
    told |= {"http_request_id": "req_header", "endpoint": "/v1/x", "streamed": True}
    old = replace(an_event("t", NOON - timedelta(days=30), price, (1, 0, 1)), request_id="chatcmpl-0")
    await store(analytics, replace(an_event("t", NOON, price, (10, 5, 4)), **told), old)  # type: ignore[arg-type]
    one = await admin.get("/requests/chatcmpl-1", "viewer")
    expected = {name: value for name, value in told.items() if name != "recompute_ns"}
    assert {name: one[name] for name in expected} == expected
    assert one["recomputed"] == [{"tier": "premium", "engine_ns": 5}]
    (listed,) = (await admin.get("/requests"))["data"]
    assert one | listed == one, "the list says the same, and less"
    for path in ("/requests/chatcmpl-2", "/requests/chatcmpl-0"):
        assert (await admin.refused(404, "GET", path))["code"] == "request_not_found"
    whose = {"tenant_id": "00000000-0000-0000-0000-000000000000"}
    assert (await admin.refused(404, "GET", "/requests/chatcmpl-1", params=whose))["code"] == "request_not_found"
    by_header = await admin.get("/requests/req_header")
    assert (by_header["request_id"], by_header["endpoint"], by_header["streamed"]) == ("chatcmpl-1", "/v1/x", True)
    for id in ("chatcmpl-1", "req_header"):
        (listed,) = (await admin.get("/requests", params={"request_id": id}))["data"]
        assert listed["request_id"] == "chatcmpl-1"
    near = {"near": (NOON - timedelta(days=30, minutes=59)).isoformat()}
    assert (await admin.get("/requests/chatcmpl-0", params=near))["request_id"] == "chatcmpl-0"


async def test_requests_are_filtered_by_how_they_ended(admin: Admin, analytics: Analytics) -> None:
    price = Price("m@1", 150, 75, 600)
    endings = [Ending.STOP, Ending.QUOTA, Ending.STOP]
    await store(
        analytics, *(replace(an_event("t", NOON, price, (1, 0, n)), finish_reason=e) for n, e in enumerate(endings))
    )
    (cut,) = (await admin.get("/requests", params={"finish_reason": "quota"}))["data"]
    assert cut["completion_tokens"] == 1
    assert (await admin.refused(400, "GET", "/requests", params={"finish_reason": "x"}))["param"] == "finish_reason"


async def test_requests_are_filtered_by_the_status_that_their_client_saw(admin: Admin, analytics: Analytics) -> None:
    price, statuses = Price("m@1", 150, 75, 600), [200, 499, 503, 0]
    told = [replace(an_event("t", NOON, price, (1, 0, n)), http_status=each) for n, each in enumerate(statuses)]
    await store(analytics, *told)
    listed = (await admin.get("/requests"))["data"]
    assert {each["completion_tokens"]: each["http_status"] for each in listed} == {0: 200, 1: 499, 2: 503, 3: None}
    (gone,) = (await admin.get("/requests", params={"http_status": "499"}))["data"]
    assert gone["completion_tokens"] == 1
    assert (await admin.get("/requests", params={"http_status": "429"}))["data"] == []
    for wrong in ("99", "600", "5xx"):
        refused = await admin.refused(400, "GET", "/requests", params={"http_status": wrong})
        assert refused["param"] == "http_status"


async def test_requests_are_filtered_by_their_adapter(admin: Admin, analytics: Analytics) -> None:
    price, adapters = Price("m@1", 150, 75, 600), ["", "support:aaaaaaaaaaaa", "sql:bbbbbbbbbbbb"]
    await store(
        analytics, *(replace(an_event("t", NOON, price, (1, 0, n)), adapter_id=each) for n, each in enumerate(adapters))
    )
    (mine,) = (await admin.get("/requests", params={"adapter_id": "sql:bbbbbbbbbbbb"}))["data"]
    assert mine["completion_tokens"] == 2


async def test_shares_of_routing_are_counted_exactly(admin: Admin, analytics: Analytics) -> None:
    price = Price("m@1", 150, 75, 600)
    asked = [("t0", "complexity_small", 9), ("t1", "complexity_small", 9), ("t0", "complexity_large", 9)]
    events = [
        replace(an_event(tenant, NOON.replace(hour=hour), price, (10, 5, 4)), route_reason=reason, routed_model="r")
        for tenant, reason, hour in [*asked, ("t0", "complexity_small", 11)]
    ]
    await store(analytics, *events, events[0])
    found = (await admin.get("/routing/shares", "viewer"))["data"]
    assert [(each["start"][11:13], each["route_reason"], each["events"]) for each in found] == [
        ("09", "complexity_large", 1),
        ("09", "complexity_small", 2),
        ("11", "complexity_small", 1),
    ]
    small = found[1]
    assert (small["routed_model"], small["prompt_tokens"], small["cached_tokens"]) == ("r", 20, 10)
    assert small["cost_nanodollars"] == 2 * (5 * 150 + 5 * 75 + 4 * 600)
    nobody = {"tenant_id": "00000000-0000-0000-0000-000000000000"}
    assert (await admin.get("/routing/shares", params=nobody))["data"] == []
    long = {"start": "2025-11-01T00:00:00Z"}
    assert (await admin.refused(400, "GET", "/routing/shares", params=long))["param"] == "start"


async def test_a_month_is_drafted_finalised_read_and_credited(admin: Admin, analytics: Analytics) -> None:
    tenant_id, price = await priced(admin)
    await store(analytics, an_event(tenant_id, DECEMBER, price, (1000, 200, 100)))
    total = 800 * 150 + 200 * 75 + 100 * 600
    of_tenant = f"/tenants/{tenant_id}/invoices"
    draft = await admin.get(f"{of_tenant}/2025-12/draft", "viewer")
    assert (draft["number"], draft["total_nanodollars"], draft["discrepancies"]) == (None, total, [])
    early = await admin.refused(409, "POST", of_tenant, json={"month": "2026-01"})
    assert (early["code"], early["param"]) == ("month_is_open", "month")

    made = await admin.post(of_tenant, {"month": "2025-12"}, 200, role="billing")
    invoice = made["invoice"]
    assert (invoice["total_nanodollars"], invoice["due_nanodollars"], len(invoice["lines"])) == (total, total, 1)
    assert await admin.post(of_tenant, {"month": "2025-12"}, 200) == made
    final = await admin.refused(409, "GET", f"{of_tenant}/2025-12/draft")
    assert final["code"] == "month_is_final"
    one = f"/invoices/{invoice['number']}"
    assert await admin.get(one) == invoice

    body = {"nanodollars": 5000, "reason": "a slow day", "line": 1}
    note = await admin.post(f"{one}/credit-notes", body, role="billing")
    assert (note["invoice"], note["line"], note["amount_nanodollars"]) == (invoice["number"], 1, 5000)
    error = await admin.refused(409, "POST", f"{one}/credit-notes", json=body | {"nanodollars": total})
    assert error["code"] == "credit_too_large"
    (listed,) = (await admin.get("/invoices", params={"tenant_id": tenant_id}))["data"]
    assert (listed["number"], listed["due_nanodollars"]) == (invoice["number"], total - 5000)
    assert (await admin.get("/invoices", params={"month": "2025-11"}))["data"] == []

    csv = await admin.request("GET", one, params={"format": "csv"})
    assert csv.headers["content-type"] == "text/csv; charset=utf-8"
    assert csv.text.splitlines()[1].startswith(f"{invoice['number']},usage,1,2025-12,m,")
    html = await admin.request("GET", one, params={"format": "html"})
    assert html.headers["content-type"] == "text/html; charset=utf-8"
    assert invoice["number"] in html.text

    told = (await admin.get("/audit", params={"resource": "invoice", "tenant_id": tenant_id}))["data"]
    assert [(each["action"], each["resource_id"]) for each in told] == [
        ("credit", invoice["number"]),
        ("finalise", invoice["number"]),
    ]


async def test_an_invoice_is_billed_paid_and_audited(admin: Admin, analytics: Analytics) -> None:
    tenant_id, price = await priced(admin)
    bill_to = f"/tenants/{tenant_id}/bill-to"
    party = {"name": "Acme GmbH", "address": "Hauptstraße 1\n10115 Berlin", "tax_id": ""}
    answer = await admin.request("PUT", bill_to, "billing", json=party)
    assert (answer.status_code, answer.json()) == (200, party)
    for wrong, param in (({"name": "a\nb"}, "name"), ({"address": "\n".join("123456789")}, "address")):
        assert (await admin.refused(400, "PATCH", bill_to, json=wrong))["param"] == param

    await store(analytics, an_event(tenant_id, DECEMBER, price, (10**6, 0, 0)))
    made = await admin.post(f"/tenants/{tenant_id}/invoices", {"month": "2025-12"}, 200, role="billing")
    number = made["invoice"]["number"]
    assert (made["invoice"]["status"], made["invoice"]["bill_to"]) == ("open", party)
    assert made["invoice"]["payable"]["due_cents"] == 15

    paid = await admin.post(f"/invoices/{number}/pay", {"reference": "transfer 7"}, 200, role="billing")
    assert (paid["status"], paid["payable"]["paid_cents"], paid["payable"]["due_cents"]) == ("paid", 15, 0)
    assert await admin.post(f"/invoices/{number}/pay", {}, 200) == paid
    error = await admin.refused(409, "POST", f"/invoices/{number}/void", json={"reason": "late"})
    assert error["code"] == "invoice_settled"
    assert (await admin.refused(400, "POST", f"/invoices/{number}/void", json={}))["param"] == "reason"
    for status, found in (("paid", [number]), ("open", []), ("void", [])):
        listed = (await admin.get("/invoices", params={"status": status}))["data"]
        assert [each["number"] for each in listed] == found
    told = (await admin.get("/audit", params={"resource": "invoice"}))["data"]
    assert [each["action"] for each in told] == ["pay", "finalise"]
    assert (told[0]["before"]["status"], told[0]["after"]["paid_cents"]) == ("open", 15)


async def test_invoices_are_found_that_are_overdue(admin: Admin, analytics: Analytics, clock: Clock) -> None:
    tenant_id, price = await priced(admin)
    await store(analytics, an_event(tenant_id, DECEMBER, price, (10**6, 0, 0)))
    await admin.post(f"/tenants/{tenant_id}/invoices", {"month": "2025-12"}, 200, role="billing")
    number, due = "INV-2025-11-000001", NOON.date() + timedelta(days=14)
    late = {"number": number, "month": "2025-11", "sequence": 1, "tenant_id": tenant_id, "tenant_name": "acme"}
    late |= {"total_nanodollars": 10**9, "events": 1, "digest": "0" * 32, "finalised_at": NOON, "due_date": due}
    async with admin.app.context.database.begin() as connection:
        await connection.execute(insert(InvoiceRow).values(late))

    async def overdue() -> list[str]:
        return [each["number"] for each in (await admin.get("/invoices", params={"status": "overdue"}))["data"]]

    clock.now = datetime(due.year, due.month, due.day, 23, 59, tzinfo=UTC)
    assert await overdue() == []
    clock.now += timedelta(minutes=2)
    assert await overdue() == [number], "and not the one without a due date"
    assert (await admin.refused(400, "GET", "/invoices", params={"status": "late"}))["param"] == "status"


async def test_many_who_finalise_and_credit_at_once_do_it_once(admin: Admin, analytics: Analytics) -> None:
    tenant_id, price = await priced(admin)
    await store(analytics, an_event(tenant_id, DECEMBER, price, (1000, 0, 0)))
    path = f"/tenants/{tenant_id}/invoices"
    made = await asyncio.gather(*(admin.post(path, {"month": "2025-12"}, 200) for _ in range(10)))
    assert len({each["invoice"]["number"] for each in made}) == 1
    one = f"/invoices/{made[0]['invoice']['number']}"
    body = {"nanodollars": 20_000, "reason": "x"}
    notes = await asyncio.gather(
        *(
            admin.request("POST", f"{one}/credit-notes", json=body, headers={"idempotency-key": f"k{n % 10}"})
            for n in range(30)
        )
    )
    # 150,000 nanodollars have room for seven; each of those has three answers.
    assert sorted(each.status_code for each in notes).count(201) == 21
    assert (await admin.get(one))["due_nanodollars"] == 10_000


async def test_two_who_finalise_a_month_at_once_leave_one_audit_entry(
    admin: Admin, analytics: Analytics, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant_id, price = await priced(admin)
    await store(analytics, an_event(tenant_id, DECEMBER, price, (1000, 0, 0)))
    both_read_usage, query = asyncio.Barrier(2), analytics.query

    async def query_together(*arguments: Any) -> list[Any]:
        await both_read_usage.wait()
        return await query(*arguments)

    monkeypatch.setattr(analytics, "query", query_together)
    path = f"/tenants/{tenant_id}/invoices"
    first, second = await asyncio.gather(*(admin.post(path, {"month": "2025-12"}, 200) for _ in range(2)))
    assert first == second
    entries = (await admin.get("/audit", params={"resource": "invoice"}))["data"]
    assert [(each["action"], each["resource_id"]) for each in entries] == [("finalise", first["invoice"]["number"])]


async def test_a_month_without_usage_and_what_is_not_there(admin: Admin) -> None:
    tenant_id, _ = await priced(admin)
    path = f"/tenants/{tenant_id}/invoices"
    assert await admin.post(path, {"month": "2025-12"}, 200) == {"invoice": None}
    nobody = path.replace(tenant_id, "00000000-0000-0000-0000-000000000000")
    assert (await admin.refused(404, "POST", nobody, json={"month": "2025-12"}))["code"] == "tenant_not_found"
    assert (await admin.refused(404, "GET", "/invoices/INV-1"))["code"] == "invoice_not_found"
    error = await admin.refused(400, "POST", path, json={"month": "1999-12"})
    assert error["param"] == "month"


async def test_credit_is_granted_corrected_and_used_up(admin: Admin, analytics: Analytics, clock: Clock) -> None:
    tenant_id, price = await priced(admin)
    one = f"/tenants/{tenant_id}"
    postpaid = await admin.get(f"{one}/balance")
    assert (postpaid["prepaid"], postpaid["left_dollars"], postpaid["month_spent_dollars"]) == (False, None, "0.00")
    entries = [
        await admin.post(f"{one}/credit", {"nanodollars": amount, "reason": "wire"}, role="billing")
        for amount in (10**9, -(10**8))
    ]
    await admin.request("PUT", f"{one}/limits", json={"kind": "tenant", "nanodollars_per_month": 5 * 10**9})
    await store(
        analytics,
        an_event(tenant_id, clock.now - timedelta(hours=1), price, (1000, 0, 0)),
        an_event(tenant_id, DECEMBER, price, (1000, 0, 0)),
        an_event(tenant_id, clock.now + timedelta(hours=1), price, (2000, 0, 0)),
    )
    balance = await admin.get(f"{one}/balance", "viewer")
    assert balance["prepaid"] is True
    assert (balance["granted_dollars"], balance["spent_dollars"], balance["left_dollars"]) == (
        "0.90",
        "0.0003",
        "0.8997",
    ), "what was used before the first entry is on invoices"
    assert (balance["month"], balance["month_spent_dollars"], balance["month_budget_dollars"]) == (
        "2026-01",
        "0.00045",
        "5.00",
    )
    assert await admin.every(f"{one}/credit", 1) == entries
    for body, param in (
        ({"nanodollars": 0, "reason": "x"}, "nanodollars"),
        ({"nanodollars": 1, "reason": ""}, "reason"),
    ):
        assert (await admin.refused(400, "POST", f"{one}/credit", json=body))["param"] == param


async def test_costs_and_reconciliation(admin: Admin, analytics: Analytics, tmp_path: Path) -> None:
    at = NOON - timedelta(minutes=20)
    await store(analytics, an_event("t1", at, Price("m@1", 150, 75, 600), (10, 0, 1), engine_ns=3_600_000_000_000))
    (row,) = (await admin.get("/costs"))["data"]
    assert (row["tenant_id"], row["cost_dollars"], row["revenue_dollars"]) == ("t1", "2.00", "0.0000021")
    assert row["margin_nanodollars"] == 2100 - 2 * 10**9
    error = await admin.refused(503, "GET", "/reconciliation")
    assert "journal" in error["message"]
    await Journal(tmp_path / "journal.db", min_free_bytes=0).aclose()
    found = await admin.get("/reconciliation")
    assert found["journal"]["events"] == 0
    assert found["drift"] is True, "no gateway signed what is there"
    assert [each["tenant_id"] for each in found["unauthenticated"]] == ["t1"]
    assert [(each["rows"], each["cost_nanodollars"]) for each in found["unknown_sources"]] == [(1, 2100)]
    await analytics.command("TRUNCATE TABLE usage_events")
    found = await admin.get("/reconciliation")
    assert (found["drift"], found["unauthenticated"], found["former_rows"]) == (False, [], 0)


class TestAway:
    @pytest.fixture
    def analytics(self) -> Analytics:
        return AwayAnalytics()

    @pytest.mark.parametrize("path", ["/usage", "/requests", "/costs"])
    async def test_while_the_store_of_usage_is_away(self, admin: Admin, path: str) -> None:
        error = await admin.refused(503, "GET", path)
        assert error["code"] == "service_unavailable"


async def test_latencies_are_percentiles_by_what_is_asked_for(admin: Admin, analytics: Analytics) -> None:
    price = Price("m@1", 150, 75, 600)
    at = NOON - timedelta(minutes=30)
    slow = replace(an_event("t1", at, price, (10, 0, 3)), ttft_ms=1000, total_latency_ms=3000, paused_ms=0)
    quick = replace(an_event("t2", at, price, (10, 0, 1), sequence=2), ttft_ms=100, total_latency_ms=100)
    await store(analytics, slow, quick)
    by_tenant = (await admin.get("/usage/latencies", "viewer", params={"by": "tenant"}))["data"]
    assert [(each["tenant"], each["start"], each["events"]) for each in by_tenant] == [("t1", None, 1), ("t2", None, 1)]
    assert by_tenant[0]["ttft_ms"]["p50"] == pytest.approx(1000, rel=0.005)
    assert by_tenant[0]["itl_ms"]["p99"] == pytest.approx(1000, rel=0.005)
    assert by_tenant[1]["itl_ms"] is None
    (hour,) = (await admin.get("/usage/latencies", params={"bucket": "hour", "model": "m"}))["data"]
    assert (hour["start"], hour["tenant"], hour["key"]) == ("2026-01-02T11:00:00.000000Z", None, None)
    far = {"start": (NOON - timedelta(days=93)).isoformat()}
    assert (await admin.refused(400, "GET", "/usage/latencies", params=far))["param"] == "start"
    assert (await admin.refused(400, "GET", "/usage/latencies", params={"by": "x"}))["param"] == "by[0]"
