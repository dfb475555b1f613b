"""What models cost: versions that are added and never changed."""

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import Page, Redirect, Screen, Visit
from gateway.management.console.typed import moment_of, pairs_of
from gateway.management.operations.roles import READERS


class Prices:
    """Handlers."""

    def __init__(self, context: ConsoleContext) -> None:
        self._tiers = tuple(context.admin.tiers)

    async def page(self, visit: Visit) -> Page:
        filters = visit.query.given("model")
        page = await visit.acts.read("listPrices", query={**filters, **visit.query.given("cursor")})
        values = {
            "prices": page["data"],
            "next": next_page("/prices", filters, page["next_cursor"]),
            "filters": filters,
            "tiers": self._tiers,
            "may_add": visit.may("createPrice"),
        }
        return Page("prices.html", values)

    async def add(self, visit: Visit) -> Redirect:
        pairs = pairs_of("multipliers", visit.form.get("multipliers"), " ", "premium 3")
        more = {
            "multipliers": [{"tier": tier, "multiplier": multiplier} for tier, multiplier in pairs] or None,
            "effective_from": moment_of(visit.form.get("effective_from")),
        }
        price = await visit.acts.submit("createPrice", visit.form, more=more)
        return Redirect("/prices", f"{price['model']} costs this from {price['effective_from'][:16]} UTC on.")


def screens(context: ConsoleContext) -> list[Screen]:
    prices = Prices(context)
    return [
        Screen(
            path="/prices",
            name="prices",
            title="Prices",
            section="Money",
            allowed=READERS,
            get=prices.page,
            post={"add": prices.add},
        )
    ]
