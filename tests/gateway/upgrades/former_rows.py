"""Rows that the program of each revision of the SQL store has written."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
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
ISSUER = {"name": "Turnpike Inc.", "address": "1 Toll Road\nSpringfield", "tax_id": "XX1"}
BILL_TO = {"name": "Acme GmbH", "address": "Hauptstraße 1\n10115 Berlin", "tax_id": "DE2"}


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


_RATES = ("requests_per_minute", "tokens_per_minute", "tokens_per_day")
_NO_LIMITS = dict.fromkeys((*_RATES, "concurrent", "context_tokens", "nanodollars_per_month"))
_ADMIN_DIGEST = bytes.fromhex("88c4224512948afa4ece7f789a12676433488ca91782f79069f3b576c87108f5")


def _rows(columns: str, *rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    """The rows of a table, by the names of its columns."""
    return [dict(zip(columns.split(), row, strict=True)) for row in rows]


_LINE = {"invoice_number": INVOICE, "usage_month": "2026-02", "served_model": "smollm2", "price_version": PRICE}

_UPLOADED = {"adapter_config.json": {"bytes": 1, "sha256": "d" * 64}}

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
    "price_versions": _rows(
        "id model effective_from input cached_input output created_at",
        (PRICE, "smollm2", EARLY, 100, 50, 400, EARLY),
    ),
    "price_multipliers": [{"price_version_id": PRICE, "tier": "premium", "multiplier": "2.5"}],
    "invoices": _rows(
        "number tenant_id tenant_name month sequence total_nanodollars events digest finalised_at issuer bill_to "
        "due_date tax_rate",
        (
            *(INVOICE, ACME, "acme", "2026-02", 1, 1_287_500, 3, "000000000000000000000000000000ff", LATER),
            *(dict(ISSUER), dict(BILL_TO), date(2026, 4, 1), 19_000),
        ),
    ),
    "invoice_settlements": _rows(
        "invoice_number status amount_cents note created_at", (INVOICE, "paid", 0, "nothing is due", LATER)
    ),
    "invoice_lines": [
        _LINE | line
        for line in _rows(
            "line tier_served input_tokens cached_tokens output_tokens input_price cached_price output_price events "
            "amount_nanodollars digest",
            (1, "premium", 1000, 100, 1000, 250, 125, 1000, 2, 1_262_500, "000000000000000000000000000000f0"),
            (2, "standard", 50, 0, 50, 100, 50, 400, 1, 25_000, "0000000000000000000000000000000f"),
        )
    ],
    "credit_notes": _rows(
        "number invoice_number line month sequence amount_nanodollars reason created_at",
        ("CN-2026-03-000001", INVOICE, 2, "2026-03", 1, 5_000, "an outage", LATER),
    ),
    "credit_entries": _rows(
        "id tenant_id amount_nanodollars reason idempotency_key created_at",
        ("33333333-3333-4333-8333-333333333333", ACME, 5_000_000_000, "paid in advance", "order-1", EARLY),
    ),
    "admin_keys": _rows(
        "public_id name role digest pepper_id last_four created_at revoked_at last_used_at",
        ("adminkey0001", "bookkeeper", "billing", _ADMIN_DIGEST, "8d452fd1c50c44a6", "hhh3", EARLY, None, LATER),
    ),
    "audit_log": _rows(
        "sequence at actor request_id action resource resource_id tenant_id before after digest",
        (
            *(1, LATER, "adminkey0001", "req_1", "create", "tenant", "acme", ACME, None),
            '{"name":"acme","tier":"premium"}',
            bytes.fromhex("ff0365196b6b90be25b02892cf1884bf3da08970f9c65e18f63f26239093b7fa"),
        ),
        (
            *(2, LATER, "command line", "", "change", "limits", "acme", ACME, '{"concurrent":null}'),
            '{"concurrent":3}',
            bytes.fromhex("d48fa3a2bcbb0ca6063ecc4d8985e1057dffc6273463d0a062166c535bc1efd3"),
        ),
    ),
    "idempotent_requests": _rows(
        "actor key fingerprint status answer created_at", ("adminkey0001", "order-1", bytes(32), 201, "{}", LATER)
    ),
    "routing_policies": _rows(
        "tenant_id preference degrade degrade_near_budget cascade_percent aliases",
        (ACME, "economy", True, False, 60, {"fast": "smollm2"}),
    ),
    "bill_to": [{"tenant_id": ACME, **BILL_TO}],
    "session_windows": [{"tenant_id": ACME, "policy": "summary"}],
    "ended_console_sessions": [{"id": "AAAAAAAAAAAAAAAAAAAAAA", "over_at": LATER}],
    "adapters": _rows(
        "id tenant_id name model weights previous price_multiplier revision created_at deleted_at",
        ("support:aaaaaaaaaaaa", ACME, "support", "smollm2", {"1": 90, "2": 10}, {"1": 100}, "1.5", 3, EARLY, None),
        ("support:bbbbbbbbbbbb", ACME, "support", "smollm2", {"1": 100}, None, "1", 2, EARLY, LATER),
    ),
    "adapter_versions": _rows(
        "adapter_id number digest rank targets parameters bytes created_at deleted_at",
        ("support:aaaaaaaaaaaa", 1, "a" * 64, 16, ["q_proj", "v_proj"], 1000, 2048, EARLY, None),
        ("support:aaaaaaaaaaaa", 2, "b" * 64, 16, ["q_proj", "v_proj"], 1000, 2048, LATER, None),
        ("support:bbbbbbbbbbbb", 1, "c" * 64, 8, ["q_proj"], 500, 1024, EARLY, None),
    ),
    "adapter_uploads": _rows(
        "id tenant_id name model files activate created_at expires_at",
        ("0" * 32, ACME, "support", "smollm2", dict(_UPLOADED), True, EARLY, LATER),
    ),
    "adapter_limits": [{"tenant_id": ACME, "max_adapters": 5, "max_bytes": 2**40}],
    "files": _rows(
        "id tenant_id filename purpose bytes sha256 created_at expires_at",
        ("file-1", ACME, "input.jsonl", "batch", 10, "a" * 64, EARLY, LATER),
    ),
    "batches": [
        {
            **{"id": "batch_1", "tenant_id": ACME, "key_id": "aaaaaaaaaaaa", "endpoint": "/v1/completions"},
            **{"completion_window": "24h", "status": "failed", "input_file_id": "file-1", "output_life_s": 3600},
            **{"errors": [{"code": "empty_file", "line": None, "message": "The input file is empty.", "param": None}]},
            **{"metadata": {"night": "1"}, "total": 0, "completed": 0, "failed": 0, "usage": {}},
            **{"created_at": EARLY, "expires_at": LATER, "failed_at": LATER},
        }
    ],
    "console_links": [{"digest": bytes(32), "key_id": "adminkey0001", "expires_at": LATER}],
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
