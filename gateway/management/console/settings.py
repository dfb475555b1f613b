"""The settings of this gateway: values and origins, read only."""

from gateway.config.shown import DEFAULT, shown, to_toml
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import Page, PageRequest, Screens
from gateway.management.operations.roles import AUDITORS

SCREENS = Screens()


@SCREENS.get("/settings", "settings", "Settings", AUDITORS, section="Operate")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    """`?all=yes`: also those that have their default."""
    found = shown(context.settings)
    wants_all = page_request.query.get("all") == "yes"
    chosen = [each for each in found if wants_all or each.origin != DEFAULT]
    rows = [(each.key, None if each.value is None else to_toml(each.value), each.origin) for each in chosen]
    return Page("settings.html", {"rows": rows, "wants_all": wants_all, "hidden": len(found) - len(chosen)})
