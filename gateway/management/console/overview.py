"""The first page: what needs attention, the engine's state, the last 24 hours and today, and a tenant's limits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.scheduling.stats import SchedulerStats
from gateway.http.errors import APIError
from gateway.management.console.attention import attention
from gateway.management.console.context import ConsoleContext
from gateway.management.console.first_steps import first_steps
from gateway.management.console.formatting import duration, percent
from gateway.management.console.limits import WORDS
from gateway.management.console.overview_figures import day_figures, recent_figures
from gateway.management.console.screens import Fragment, Page, PageRequest, Screens
from gateway.management.console.tenant_scoped_reads import TenantScopedReads
from gateway.management.operations.roles import READERS


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


SCREENS = Screens()


@SCREENS.get("", "overview", "Overview", READERS, section="Observe", tenants=True)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    values = {
        **await _attention(context, page_request),
        **await _now(context, page_request),
        **await _today(context, page_request),
    }
    return Page("overview.html", values)


@SCREENS.get("/overview/attention", "overview_attention", "Needs attention", READERS)
async def needs_attention(context: ConsoleContext, page_request: PageRequest) -> Fragment:
    return Fragment("overview_attention.html", await _attention(context, page_request))


@SCREENS.get("/overview/now", "overview_now", "Now", READERS, tenants=True)
async def now(context: ConsoleContext, page_request: PageRequest) -> Fragment:
    return Fragment("overview_now.html", await _now(context, page_request))


@SCREENS.get("/overview/today", "overview_today", "Today", READERS, tenants=True)
async def today(context: ConsoleContext, page_request: PageRequest) -> Fragment:
    return Fragment("overview_today.html", await _today(context, page_request))


async def _attention(context: ConsoleContext, page_request: PageRequest) -> Mapping[str, Any]:
    """Of the installation: for administrators."""
    return {"entries": [] if page_request.tenant is not None else await attention(context, page_request)}


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
    """None where the usage store does not answer: the rest of the page is of use all the same. Without any request in a
    day: the steps to the first one."""
    try:
        day, recent = await day_figures(context, page_request), await recent_figures(context, page_request)
    except APIError as error:
        if error.status != 503:
            raise
        return {"today": None, "recent": None, "steps": None}
    steps = None if recent is not None else await first_steps(context, page_request)
    return {"today": day, "recent": recent, "steps": steps}
