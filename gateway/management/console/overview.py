"""The first page: the engine's state, today's usage, and a tenant's limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from engine.scheduling.stats import SchedulerStats
from gateway.analytics.sums import Grain
from gateway.http.errors import APIError
from gateway.management.console.context import ConsoleContext
from gateway.management.console.filters import reading, tenant_names
from gateway.management.console.formatting import duration, percent
from gateway.management.console.limits import WORDS
from gateway.management.console.screens import Fragment, Page, PageRequest, Screens
from gateway.management.console.tenant_scoped_reads import TenantScopedReads
from gateway.management.console.usage_figures import Group, grouped, summed
from gateway.management.operations.roles import READERS
from gateway.management.operations.timestamps import instant

SHOWN_GROUPS = 8
"""Models, and tenants, by what they cost today: of the rest there is the sum."""


@dataclass(frozen=True, slots=True)
class ModelNow:
    """One model's line. `used_blocks` are held by requests; what is cached for later is not among them."""

    name: str
    running: int
    waiting: int
    paused: int
    longest_wait: str
    preemptions: int
    used_blocks: int
    num_blocks: int
    used: str

    @classmethod
    def of(cls, name: str, stats: SchedulerStats) -> "ModelNow":
        used_blocks = stats.num_blocks - stats.free_blocks
        return cls(
            name,
            stats.running,
            stats.waiting,
            stats.paused,
            duration(max((each.queue_age_ns for each in stats.classes), default=0) / 1e6),
            stats.preemptions_total,
            used_blocks,
            stats.num_blocks,
            percent(used_blocks, stats.num_blocks),
        )


@dataclass(frozen=True, slots=True)
class Day:
    """Usage since midnight UTC, by model and, for administrators, by tenant; the most expensive first."""

    total: Group
    models: Sequence[Group]
    tenants: Sequence[Group]


SCREENS = Screens()


@SCREENS.get("", "overview", "Overview", READERS, section="Observe", tenants=True)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    return Page("overview.html", {**await _now(context, page_request), **await _today(context, page_request)})


@SCREENS.get("/overview/now", "overview_now", "Now", READERS, tenants=True)
async def now(context: ConsoleContext, page_request: PageRequest) -> Fragment:
    return Fragment("overview_now.html", await _now(context, page_request))


@SCREENS.get("/overview/today", "overview_today", "Today", READERS, tenants=True)
async def today(context: ConsoleContext, page_request: PageRequest) -> Fragment:
    return Fragment("overview_today.html", await _today(context, page_request))


async def _now(context: ConsoleContext, page_request: PageRequest) -> Mapping[str, Any]:
    """The engine's state is for administrators: from others' queues a tenant could tell who is busy."""
    if page_request.tenant is not None:
        mine = TenantScopedReads(page_request.operations, page_request.tenant)
        use = await mine.read("readLimitUse")
        return {"counters": [each for each in use["data"] if mine.concerns(each)], "words": WORDS}
    journal = context.journal
    return {
        "ready": context.engine.ready,
        "models": [ModelNow.of(name, stats) for name, stats in context.engine.stats().items()],
        "backlog": journal.backlog_events,
        "trouble": journal.trouble,
    }


async def _today(context: ConsoleContext, page_request: PageRequest) -> Mapping[str, Any]:
    """None where the store of usage does not answer: the rest of the page is of use all the same."""
    try:
        return {"today": await _day(context, page_request)}
    except APIError as error:
        if error.status != 503:
            raise
        return {"today": None}


async def _day(context: ConsoleContext, page_request: PageRequest) -> Day:
    midnight = datetime.combine(context.now().astimezone(UTC), datetime.min.time(), UTC)
    window = {
        "start": instant(midnight),
        "end": instant(midnight + timedelta(days=1)),
        "bucket": Grain.DAY.value,
    }
    read = reading(page_request)
    by_model = (await read("readUsage", query={**window, "by": "model"}))["data"]
    total = Group(None, "all", summed(by_model))
    models = grouped(by_model, "model", {})[:SHOWN_GROUPS]
    if page_request.tenant is not None:
        return Day(total, models, ())
    by_tenant = (await read("readUsage", query={**window, "by": "tenant"}))["data"]
    return Day(total, models, grouped(by_tenant, "tenant", await tenant_names(page_request))[:SHOWN_GROUPS])
