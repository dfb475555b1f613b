"""The price page: versions of prices, which are added and never changed."""

from gateway.management.console.addresses import next_page
from gateway.management.console.context import ConsoleContext
from gateway.management.console.form_parsing import moment_of, pairs_of
from gateway.management.console.formatting import aligned
from gateway.management.console.pickers import as_options, model_names, with_option
from gateway.management.console.screens import Page, PageRequest, Redirect, Screens
from gateway.management.operations.roles import READERS

SCREENS = Screens()


@SCREENS.get("/prices", "prices", "Prices", READERS, section="Money")
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    filters = page_request.query.given("model")
    page = await page_request.actions.read("listPrices", query={**filters, **page_request.query.given("cursor")})
    shown = {
        name: aligned([price[f"{name}_dollars_per_million"] for price in page["data"]])
        for name in ("input", "cached_input", "output")
    }
    models = model_names(context)
    values = {
        "prices": [
            price | {"shown": {name: column[row] for name, column in shown.items()}}
            for row, price in enumerate(page["data"])
        ],
        "models": models,
        "model_options": with_option(as_options(models), filters.get("model", "")),
        "next": next_page("/prices", filters, page["next_cursor"]),
        "filters": filters,
        "tiers": tuple(context.admin.tiers),
        "may_add": page_request.may("createPrice"),
    }
    return Page("prices.html", values)


@SCREENS.post("prices", "add")
async def add(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    pairs = pairs_of("multipliers", page_request.form.get("multipliers"), " ", "premium 3")
    more = {
        "multipliers": [{"tier": tier, "multiplier": multiplier} for tier, multiplier in pairs] or None,
        "effective_from": moment_of(page_request.form.get("effective_from")),
    }
    price = await page_request.actions.submit("createPrice", page_request.form, more=more)
    return page_request.saved(f"Price of {price['model']} added, effective {price['effective_from'][:16]} UTC.")
