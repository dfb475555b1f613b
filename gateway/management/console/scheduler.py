"""The scheduler as it is now: told by the engine itself, without a detour through metrics."""

from collections.abc import Mapping
from typing import Any

from gateway.management.console.context import ConsoleContext
from gateway.management.console.scheduler_figures import ModelFigures
from gateway.management.console.screens import Fragment, Page, PageRequest, Screens
from gateway.management.operations.roles import READERS

EVERY_S = 2


SCREENS = Screens()


@SCREENS.get("/scheduler", "scheduler", "Scheduler", READERS, section="Observe")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    return Page("scheduler.html", _values(context))


@SCREENS.get("/scheduler/now", "scheduler_now", "Scheduler now", READERS)
async def now(context: ConsoleContext, page_request: PageRequest) -> Fragment:
    return Fragment("scheduler_now.html", _values(context))


def _values(context: ConsoleContext) -> Mapping[str, Any]:
    now, earlier = context.looks.look(context.engine.stats())
    return {
        "ready": context.engine.ready,
        "models": [ModelFigures.of(name, now, earlier) for name in now.stats],
        "every_s": EVERY_S,
    }
