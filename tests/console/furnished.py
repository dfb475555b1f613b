"""A house in which something has happened: usage of two tenants last month and recently, an invoice, limits, credit,
requests under way. The same at each call, but for the time of day."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.adapters.source import AdapterFacts
from engine.scheduling.stats import ClassStats, SchedulerStats
from gateway.adapters.changes import AdapterChanges
from gateway.management.console.app import ConsoleApp
from gateway.management.console.screens import Screen
from gateway.management.operations.operations import Operations
from gateway.management.operations.roles import Administrator, Role
from gateway.tenancy.database import writing
from tests.console.events import of_tenant, used
from tests.console.house import ACME, TENANTS, House
from tests.support.refusal_samples import refusal, store_refusals
from tests.support.usage_samples import HOUR_MS, Event

PROMPT, CACHED, COMPLETION = 100, 50, 400
"""Nanodollars a token, as the house's prices have it."""
NO_MODEL = {"model": "gpt-4o", "outcome": "refused", "status": 404, "code": "model_not_found", "limit_name": ""}
UNKNOWN_KEY = {
    **dict.fromkeys(("tenant_id", "key_id", "tier", "model", "limit_name"), ""),
    **{"outcome": "refused", "status": 401, "code": "invalid_api_key"},
}
ENDINGS = ("stop",) * 12 + ("length",) * 4 + ("tool_calls",) * 2 + ("cancelled", "error")
STATUSES = {"cancelled": 499, "error": 500}
ENDPOINTS = ("/v1/chat/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
TIERS = ("premium", "standard")
BILL_TO = {"name": "Acme GmbH", "address": "Hauptstraße 1\n10115 Berlin", "tax_id": "DE123456789"}
MULTIPLIERS = {"premium": 3, "standard": 1}


@dataclass(frozen=True)
class Furnished:
    """`parts`: what stands in the braces of screens' paths, each of the tenant ACME."""

    house: House
    parts: dict[str, str]


async def furnish(house: House) -> Furnished:
    operations = house.admin.operations
    key_id = house.keys["admin"].split("-")[1]
    administrator = Administrator(key_id, "the admin", Role.ADMIN)
    acme = {"tenant_id": house.tenant[ACME].id}

    async def change(operation: str, path: dict[str, str], body: dict[str, Any]) -> Any:
        return await operations.change(operation, administrator, "req_furnish", path, body)

    versions = await price_versions(operations, administrator)
    last_month = datetime.now(UTC).replace(day=1, hour=12) - timedelta(days=9)
    await used(house, *usage(house, versions, last_month, 40, scale=20_000))
    await used(house, *usage(house, versions, datetime.now(UTC), 160, first=41))
    await refused(house)
    limits = {"requests_per_minute": 600, "tokens_per_minute": 200_000, "nanodollars_per_month": 250 * 10**9}
    await change("replaceLimits", acme, {"kind": "tenant", **limits})
    await change("replaceBillTo", acme, BILL_TO)
    final = await change("finaliseInvoice", acme, {"month": f"{last_month:%Y-%m}"})
    number = {"invoice_number": final["invoice"]["number"]}
    await change("creditInvoice", number, {"nanodollars": 12_500_000_000, "reason": "An outage"})
    await change("grantCredit", {"tenant_id": house.tenant["globex"].id}, {"nanodollars": 50 * 10**9, "reason": "Paid"})
    await change("createKey", acme, {"name": "batch jobs", "scopes": ["chat"], "models": ["tiny"]})
    await own_adapter(house, acme)
    house.engine.said = {"tiny": busy(7, 3), "org/tiny-2": busy(2, 0)}
    parts = {
        **acme,
        "key_id": house.keys[ACME].split("-")[1],
        **number,
        "month": f"{last_month:%Y-%m}",
        "request_id": "req_50",
        "adapter_name": "support",
    }
    return Furnished(house, parts)


async def own_adapter(house: House, tenant: dict[str, str]) -> None:
    """An adapter with three versions, two of which share the requests."""
    async with writing(house.admin.context.database) as connection:
        changes = AdapterChanges(connection, datetime.now(UTC))
        adapter = await changes.create(tenant["tenant_id"], "support", "tiny")
        for number in range(1, 4):
            digest = f"{number}" * 64
            facts = AdapterFacts(digest, 16, ("down_proj", "q_proj", "v_proj"), 4_882_432, 9_800_000, "tiny")
            adapter = await changes.add_version(adapter, facts, activate=True)
        await changes.set_weights(adapter, {2: 90, 3: 10})


async def refused(house: House) -> None:
    """Refusals of the last day: limits, an unknown model, an unknown key."""
    acme, key_id = house.tenant[ACME].id, house.keys[ACME].split("-")[1]
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    rows = []
    for hour in range(20):
        at_ms = now_ms - hour * HOUR_MS - 60_000
        rows += [
            refusal(3 * hour + 1, at_ms, tenant_id=acme, key_id=key_id, model="tiny", requests=1 + hour % 4),
            refusal(3 * hour + 2, at_ms, tenant_id=acme, key_id=key_id, **NO_MODEL, requests=1),
            refusal(3 * hour + 3, at_ms, **UNKNOWN_KEY, requests=1 + hour % 2),
        ]
    await store_refusals(house.services.analytics, rows)


async def price_versions(operations: Operations, administrator: Administrator) -> dict[str, str]:
    """The id of each model's price."""
    return {each["model"]: each["id"] for each in (await operations.read("listPrices", administrator))["data"]}


def usage(
    house: House, versions: dict[str, str], until: datetime, count: int, first: int = 1, scale: int = 1
) -> list[Event]:
    """Requests of a day and a half, their sequence from `first` on; the last of them is the oldest. `scale`: of their
    tokens."""
    chance = random.Random(first)
    events = []
    for sequence in range(first, first + count):
        at = until - timedelta(minutes=(sequence - first) * 13 + chance.random() * 8)
        model = chance.choice(("tiny", "tiny", "org/tiny-2"))
        prompt, completion = scale * chance.randrange(80, 4000), scale * chance.randrange(10, 600)
        cached = prompt // 16 * chance.choice((0, 4, 12))
        tier = TIERS[sequence % 3 == 0]
        ending = chance.choice(ENDINGS)
        multiplier = MULTIPLIERS[tier]
        fields = {
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "completion_tokens": completion,
            "cost_nanodollars": multiplier * ((prompt - cached) * PROMPT + cached * CACHED + completion * COMPLETION),
            "requested_model": chance.choice((model, "auto")),
            "routed_model": model,
            "served_model": model,
            "price_version": versions[model],
            "http_request_id": f"req_{sequence:032x}",
            "endpoint": chance.choice(ENDPOINTS),
            "streamed": bool(sequence % 3),
            "tier": tier,
            "tier_served": tier,
            "ttft_ms": 20 + prompt // scale // 20,
            "total_latency_ms": 40 + (prompt // 20 + completion * 9) // scale,
            "finish_reason": ending,
            "http_status": 200 if sequence % 3 else STATUSES.get(ending, 200),
            "draft_tokens": completion // 2,
            "accepted_draft_tokens": completion // chance.randrange(3, 7),
            "preemptions": int(chance.random() < 0.05),
            "paused_ms": 0,
            "queue_ms": chance.randrange(40),
            "engine_ns": completion // scale * 2_100_000,
        }
        name = TENANTS[sequence % 3 == 0]
        events.append(of_tenant(house, name, sequence, int(at.timestamp() * 1000), **fields))
    return events


def busy(running: int, waiting: int) -> SchedulerStats:
    """A scheduler of 512 blocks in the middle of its work."""
    classes = tuple(
        class_stats(name, share * running // 7, waiting if name == "batch" else 0, share * running * 6)
        for name, share in (("premium", 2), ("standard", 4), ("batch", 1))
    )
    held = sum(each.held_blocks for each in classes)
    return SchedulerStats(
        running=running,
        waiting=waiting,
        paused=1,
        free_blocks=512 - held,
        num_blocks=512,
        steps_total=48_211,
        scheduled_tokens_total=3_118_220,
        cached_tokens_total=911_104,
        preemptions_total=17,
        pauses_total=5,
        paused_ns_total=812_000_000,
        failures_total=0,
        wasted_rows_total=31,
        classes=classes,
    )


def class_stats(name: str, running: int, waiting: int, held_blocks: int) -> ClassStats:
    return ClassStats(
        name=name,
        running=running,
        waiting=waiting,
        queue_age_ns=420_000_000 * waiting,
        held_blocks=held_blocks,
        reserved_blocks=16,
        missing_blocks=0,
        cached_blocks=held_blocks // 2,
        attributed_ns=held_blocks * 10**9,
        recompute_ns=held_blocks * 10**6,
        recomputed_tokens=held_blocks * 3,
        preemptions_caused=held_blocks // 20,
        preemptions_suffered=held_blocks // 30,
        active_tenants=2,
        fairness=0.94,
        wasted_rows=3,
        wasted_ns=4_000_000,
        itl_limited_steps=7,
    )


def console_of(furnished: Furnished) -> ConsoleApp:
    """The application behind the door."""
    for middleware in furnished.house.app.user_middleware:
        if isinstance(within := middleware.kwargs.get("within"), ConsoleApp):
            return within
    raise AssertionError("the application has no console")


def address(screen: Screen, furnished: Furnished) -> str:
    """Below /console. A screen with a new name in its path wants a sample of it in `furnished.py`."""
    return screen.path.format(**furnished.parts)
