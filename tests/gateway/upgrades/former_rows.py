"""What the programs of each revision of the SQL store have written."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, MetaData, Table, inspect

PEPPER = b"a pepper of the former versions, 32 bytes and more"
KEY = "tp-acmekey00001-AAAAAAAAAAAAAAAAAAAAAbbbbbbbbbbbbbbbbbbbbb7"
REVOKED_KEY = "tp-acmekey00002-CCCCCCCCCCCCCCCCCCCCCddddddddddddddddddddd8"
SUSPENDED_KEY = "tp-globexkey001-EEEEEEEEEEEEEEEEEEEEEfffffffffffffffffffff9"
ADMIN_KEY = "tpa-adminkey0001-GGGGGGGGGGGGGGGGGGGGGhhhhhhhhhhhhhhhhhhhhh3"

ACME, GLOBEX = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"
EARLY = datetime(2026, 1, 1, tzinfo=UTC)
LATER = datetime(2026, 3, 2, 10, tzinfo=UTC)
PRICE = "smollm2@2026-01-01T00:00:00.000Z"
INVOICE = "INV-2026-02-000001"


def _key(public_id: str, tenant_id: str, digest: str, last_four: str, **others: Any) -> dict[str, Any]:
    return {
        "public_id": public_id,
        "tenant_id": tenant_id,
        "name": "production",
        "digest": bytes.fromhex(digest),
        "pepper_id": "8d452fd1c50c44a6",
        "last_four": last_four,
        "created_at": EARLY,
        "revoked_at": None,
        "expires_at": None,
        "rotated_to": None,
        "lineage": public_id,
        "scopes": None,
        "models": None,
    } | others


_NO_LIMITS = dict.fromkeys(
    (
        *("requests_per_minute", "tokens_per_minute", "tokens_per_day"),
        *("concurrent", "context_tokens", "nanodollars_per_month"),
    )
)
_LINE = {"invoice_number": INVOICE, "usage_month": "2026-02", "served_model": "smollm2", "price_version": PRICE}

ROWS: Mapping[str, list[dict[str, Any]]] = {
    "tenants": [
        {"id": ACME, "name": "acme", "tier": "premium", "created_at": EARLY, "disabled_at": None},
        {"id": GLOBEX, "name": "globex", "tier": "standard", "created_at": EARLY, "disabled_at": LATER},
    ],
    "api_keys": [
        _key("acmekey00001", ACME, "d57b533eb69f9dafed1cf512b22356f898508ec750e19ed2dd0cd1b5c55a1048", "bbb7"),
        _key(
            "acmekey00002",
            ACME,
            "4706ce608c31a01857bae39caec3a4289e74bfd45661bbc967e5ba1b20285dbc",
            "ddd8",
            revoked_at=LATER,
        ),
        _key("globexkey001", GLOBEX, "b9562fe939b6a4a4228b467ab2842f9c7dbaaa95922ecc2f47831335f0363281", "fff9"),
    ],
    "limits": [
        {"tenant_id": ACME, "kind": "tenant", "scope_id": "", **_NO_LIMITS, "requests_per_minute": 60},
        {"tenant_id": ACME, "kind": "key", "scope_id": "acmekey00001", **_NO_LIMITS, "tokens_per_day": 10**12},
        {"tenant_id": ACME, "kind": "model", "scope_id": "smollm2", **_NO_LIMITS, "concurrent": 3},
    ],
    "price_versions": [
        {
            "id": PRICE,
            "model": "smollm2",
            "effective_from": EARLY,
            "input": 100,
            "cached_input": 50,
            "output": 400,
            "created_at": EARLY,
        }
    ],
    "price_multipliers": [{"price_version_id": PRICE, "tier": "premium", "multiplier": "2.5"}],
    "invoices": [
        {
            "number": INVOICE,
            "tenant_id": ACME,
            "tenant_name": "acme",
            "month": "2026-02",
            "sequence": 1,
            "total_nanodollars": 1_287_500,
            "events": 3,
            "digest": "000000000000000000000000000000ff",
            "finalised_at": LATER,
        }
    ],
    "invoice_lines": [
        _LINE
        | {
            "line": 1,
            "tier_served": "premium",
            "input_tokens": 1000,
            "cached_tokens": 100,
            "output_tokens": 1000,
            "input_price": 250,
            "cached_price": 125,
            "output_price": 1000,
            "events": 2,
            "amount_nanodollars": 1_262_500,
            "digest": "000000000000000000000000000000f0",
        },
        _LINE
        | {
            "line": 2,
            "tier_served": "standard",
            "input_tokens": 50,
            "cached_tokens": 0,
            "output_tokens": 50,
            "input_price": 100,
            "cached_price": 50,
            "output_price": 400,
            "events": 1,
            "amount_nanodollars": 25_000,
            "digest": "0000000000000000000000000000000f",
        },
    ],
    "credit_notes": [
        {
            "number": "CN-2026-03-000001",
            "invoice_number": INVOICE,
            "line": 2,
            "month": "2026-03",
            "sequence": 1,
            "amount_nanodollars": 5_000,
            "reason": "an outage",
            "created_at": LATER,
        }
    ],
    "credit_entries": [
        {
            "id": "33333333-3333-4333-8333-333333333333",
            "tenant_id": ACME,
            "amount_nanodollars": 5_000_000_000,
            "reason": "paid in advance",
            "idempotency_key": "order-1",
            "created_at": EARLY,
        }
    ],
    "admin_keys": [
        {
            "public_id": "adminkey0001",
            "name": "bookkeeper",
            "role": "billing",
            "digest": bytes.fromhex("88c4224512948afa4ece7f789a12676433488ca91782f79069f3b576c87108f5"),
            "pepper_id": "8d452fd1c50c44a6",
            "last_four": "hhh3",
            "created_at": EARLY,
            "revoked_at": None,
            "last_used_at": LATER,
        }
    ],
    "audit_log": [
        {
            "sequence": 1,
            "at": LATER,
            "actor": "adminkey0001",
            "request_id": "req_1",
            "action": "create",
            "resource": "tenant",
            "resource_id": "acme",
            "tenant_id": ACME,
            "before": None,
            "after": '{"name":"acme","tier":"premium"}',
            "digest": bytes.fromhex("ff0365196b6b90be25b02892cf1884bf3da08970f9c65e18f63f26239093b7fa"),
        },
        {
            "sequence": 2,
            "at": LATER,
            "actor": "command line",
            "request_id": "",
            "action": "change",
            "resource": "limits",
            "resource_id": "acme",
            "tenant_id": ACME,
            "before": '{"concurrent":null}',
            "after": '{"concurrent":3}',
            "digest": bytes.fromhex("d48fa3a2bcbb0ca6063ecc4d8985e1057dffc6273463d0a062166c535bc1efd3"),
        },
    ],
    "idempotent_requests": [
        {
            "actor": "adminkey0001",
            "key": "order-1",
            "fingerprint": bytes(32),
            "status": 201,
            "answer": "{}",
            "created_at": LATER,
        }
    ],
    "routing_policies": [
        {
            "tenant_id": ACME,
            "preference": "economy",
            "degrade": True,
            "degrade_near_budget": False,
            "cascade_percent": 60,
            "aliases": {"fast": "smollm2"},
        }
    ],
    "session_windows": [{"tenant_id": ACME, "policy": "summary"}],
    "ended_console_sessions": [{"id": "AAAAAAAAAAAAAAAAAAAAAA", "over_at": LATER}],
}
"""By table, each after those it refers to. A row has all columns that its table ever had; a revision takes its own."""


def fill(connection: Connection) -> set[str]:
    """Into the tables that the database has now. Their names."""
    present = set(inspect(connection).get_table_names()) - {"alembic_version"}
    unknown = present - set(ROWS)
    assert not unknown, f"say here what a former version may have written into {unknown}"
    for name, rows in ROWS.items():
        if name in present:
            table = Table(name, MetaData(), autoload_with=connection)
            connection.execute(
                table.insert(), [{column: value for column, value in row.items() if column in table.c} for row in rows]
            )
    return present
