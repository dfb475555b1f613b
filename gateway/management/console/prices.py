"""The price page: versions of prices, which are added and never changed."""

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import moment_of, pairs_of
from gateway.management.console.screens import Page, PageRequest, Redirect, Screen
from gateway.management.operations.roles import READERS


class Prices:
    """Handlers."""

    def __init__(self, context: ConsoleContext) -> None:
        self._tiers = tuple(context.admin.tiers)

    async def page(self, page_request: PageRequest) -> Page:
        filters = page_request.query.given("model")
        page = await page_request.actions.read("listPrices", query={**filters, **page_request.query.given("cursor")})
        values = {
            "prices": page["data"],
            "next": next_page("/prices", filters, page["next_cursor"]),
            "filters": filters,
            "tiers": self._tiers,
            "may_add": page_request.may("createPrice"),
        }
        return Page("prices.html", values)

    async def add(self, page_request: PageRequest) -> Redirect:
        pairs = pairs_of("multipliers", page_request.form.get("multipliers"), " ", "premium 3")
        more = {
            "multipliers": [{"tier": tier, "multiplier": multiplier} for tier, multiplier in pairs] or None,
            "effective_from": moment_of(page_request.form.get("effective_from")),
        }
        price = await page_request.actions.submit("createPrice", page_request.form, more=more)
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
