"""A conversation with a model, as a client has it: the same endpoint, the same limits, the same bill.

A tenant speaks as itself, through a passage that its session opens. An administrator's key is none that models answer:
the page asks for a tenant's, keeps it in its memory, and sends it to the API as any client would.
"""

from collections.abc import Mapping, Sequence

import orjson

from gateway.billing.errors import NoPrice
from gateway.formats.openai.models import ModelCards
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import PREFIX, Page, PageRequest, Screens, TenantProxy
from gateway.management.operations.roles import READERS
from gateway.tenancy.grants import KeyScope

API_PATH = "/v1/chat/completions"
PASSAGE_PATH = "/playground/completions"


SCREENS = Screens()


@SCREENS.get("/playground", "playground", "Playground", READERS, section="Try", tenants=True, scope=KeyScope.CHAT)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    tiers = _tiers(context, page_request)
    values = {
        "models": _models(context, page_request),
        "tiers": tiers,
        "prices": orjson.dumps(_prices(context, tiers)).decode(),
        "target": API_PATH if page_request.tenant is None else PREFIX + PASSAGE_PATH,
        "needs_key": page_request.tenant is None,
    }
    return Page("playground.html", values)


def _models(context: ConsoleContext, page_request: PageRequest) -> Sequence[str]:
    """The model names that the key may use."""
    if page_request.tenant is None:
        return list(context.names.all_names(()))
    return [card["id"] for card in ModelCards(context.engine, context.names).all(page_request.tenant)]


def _tiers(context: ConsoleContext, page_request: PageRequest) -> Sequence[str]:
    """Classes from the highest that may be asked for. Who asks for a higher one than the key's gets the key's."""
    names = context.classes.names
    if page_request.tenant is None:
        return names
    own = context.classes.of_tier(page_request.tenant.tier).name
    return names[names.index(own) :]


def _prices(context: ConsoleContext, tiers: Sequence[str]) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """By model and class: nanodollars of a token of the prompt, of one of it from the cache, and of the answer."""
    now = context.now()
    prices: dict[str, dict[str, Sequence[int]]] = {}
    for model in context.engine.models:
        for tier in tiers:
            try:
                price = context.prices.price_of(model, tier, now)
            except NoPrice:
                continue
            prices.setdefault(model, {})[tier] = (price.prompt, price.cached_prompt, price.completion)
    return prices


def proxies(context: ConsoleContext) -> list[TenantProxy]:
    return [TenantProxy(path=PASSAGE_PATH, to=API_PATH, app=context.chat)]
