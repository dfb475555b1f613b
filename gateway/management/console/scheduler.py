"""The scheduler as it is now: told by the engine itself, without a detour through metrics."""

from collections.abc import Mapping
from typing import Any

from gateway.management.console.context import ConsoleContext
from gateway.management.console.scheduler_figures import Looks, ModelFigures
from gateway.management.console.screens import Fragment, Page, PageRequest, Screen
from gateway.management.operations.roles import READERS

EVERY_S = 2


class SchedulerPages:
    """Handlers."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        self._looks = Looks()

    async def page(self, page_request: PageRequest) -> Page:
        return Page("scheduler.html", self._values())

    async def now(self, page_request: PageRequest) -> Fragment:
        return Fragment("scheduler_now.html", self._values())

    def _values(self) -> Mapping[str, Any]:
        now, earlier = self._looks.look(self._context.engine.stats())
        return {
            "ready": self._context.engine.ready,
            "models": [ModelFigures.of(name, now, earlier) for name in now.stats],
            "every_s": EVERY_S,
        }


def screens(context: ConsoleContext) -> list[Screen]:
    pages = SchedulerPages(context)
    return [
        Screen(
            path="/scheduler",
            name="scheduler",
            title="Scheduler",
            section="Observe",
            allowed=READERS,
            get=pages.page,
        ),
        Screen(path="/scheduler/now", name="scheduler_now", title="Scheduler now", allowed=READERS, get=pages.now),
    ]
