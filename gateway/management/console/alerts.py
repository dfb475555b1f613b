"""The alerts of Prometheus, as far as this gateway can judge them now."""

from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import READERS
from gateway.telemetry.alert_conditions import NEEDS_PROMETHEUS, judge

SCREENS = Screens()


@SCREENS.get("/alerts", "alerts", "Alerts", READERS, section="Observe")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    judged = sorted(judge(context.registry), key=lambda each: not each.met)
    values = {
        "judged": judged,
        "met": sum(bool(each.met) for each in judged),
        "needs_prometheus": sorted(NEEDS_PROMETHEUS.items()),
    }
    return Page("alerts.html", values)
