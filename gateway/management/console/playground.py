"""The playground: a client as any other, through the same admission, with the same limits and the same bill.

A tenant's session speaks with its own key. An administrator chooses a tenant and gets a key of that tenant for an
hour, created by the audited operation `createKey`. Its secret goes nowhere: the page holds a grant, the key's public id
signed for this session, and the gateway looks the key up as it does for sessions.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson

from gateway.billing.errors import NoPrice
from gateway.formats.openai.models import ModelCards
from gateway.management.console.addresses import address
from gateway.management.console.chat_call import API_PATH, call_chat
from gateway.management.console.context import ConsoleContext
from gateway.management.console.pickers import tenant_options
from gateway.management.console.playground_form import chat_body
from gateway.management.console.screens import (
    PREFIX,
    Page,
    PageRequest,
    Redirect,
    Screens,
    TenantProxy,
    forbidden,
)
from gateway.management.operations.roles import ADMINS
from gateway.management.operations.timestamps import instant
from gateway.tenancy.errors import InvalidKey
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.records import Principal

PASSAGE_PATH = "/playground/completions"
KEY_LIFETIME = timedelta(hours=1)
"""Lifetime of the key of an administrator's playground."""

SCREENS = Screens()


@SCREENS.get("/playground", "playground", "Playground", ADMINS, section="Try", tenants=True, scope=KeyScope.CHAT)
async def page(context: ConsoleContext, page_request: PageRequest) -> Page:
    """`?grant=`: of the key that an administrator was granted."""
    return await _page(context, page_request, await _speaker(context, page_request))


@SCREENS.post("playground", "start")
async def start(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    """Create the key of a chosen tenant, and come back with its grant."""
    session = page_request.session
    assert session is not None
    body = {
        "name": f"playground of {page_request.user.name}"[:128],
        "scopes": [KeyScope.CHAT.value],
        "expires_at": instant(context.now() + KEY_LIFETIME),
    }
    key = await page_request.actions.change("createKey", {"tenant_id": page_request.form.get("tenant_id")}, body)
    grant = context.console_sessions.key_grant(session, key["id"])
    return Redirect(address("/playground", {"grant": grant}).removeprefix(PREFIX))


@SCREENS.post("playground", "end")
async def end(context: ConsoleContext, page_request: PageRequest) -> Redirect:
    """Revoke the granted key."""
    session = page_request.session
    assert session is not None
    key_id = context.console_sessions.granted_key(session, page_request.query.get("grant"))
    if key_id is None:
        raise forbidden()
    await page_request.actions.change("revokeKey", {"key_id": key_id})
    return Redirect("/playground", "The playground's key is revoked.")


@SCREENS.post("playground", "ask")
async def ask(context: ConsoleContext, page_request: PageRequest) -> Page:
    """One question and its whole answer, without scripts."""
    principal = await _speaker(context, page_request)
    if principal is None:
        raise forbidden()
    answer = await call_chat(context.chat, principal, chat_body(page_request.form), page_request.request_id)
    return await _page(context, page_request, principal, answer.body)


async def _speaker(context: ConsoleContext, page_request: PageRequest) -> Principal | None:
    """Who is billed. None: an administrator has not chosen a tenant yet, or the key is not in use any more."""
    if page_request.tenant is not None:
        return page_request.tenant
    assert page_request.session is not None
    key_id = context.console_sessions.granted_key(page_request.session, page_request.query.get("grant"))
    if key_id is None:
        return None
    try:
        return await context.authenticator.in_use(key_id)
    except InvalidKey:
        return None


async def _page(
    context: ConsoleContext,
    page_request: PageRequest,
    speaker: Principal | None,
    answer: Mapping[str, Any] | None = None,
) -> Page:
    is_tenant = page_request.tenant is not None
    grant = "" if is_tenant else page_request.query.get("grant")
    if speaker is None:
        values = {"tenants": await tenant_options(page_request), "has_ended": bool(grant), "speaker": None}
        return Page("playground.html", values)
    tiers = _tiers(context, speaker)
    cards = ModelCards(context.engine, context.names, context.adapters).all(speaker)
    values = {
        "speaker": speaker,
        "is_tenant": is_tenant,
        "grant": grant,
        "models": [card["id"] for card in cards],
        "tiers": tiers,
        "prices": orjson.dumps(_prices(context, tiers, speaker.tenant_id)).decode(),
        "defaults": orjson.dumps({card["id"]: card["default_parameters"] for card in cards}).decode(),
        "target": PREFIX + PASSAGE_PATH,
        "api_path": API_PATH,
        "typed": page_request.form,
        "answer": answer,
    }
    return Page("playground.html", values)


def _tiers(context: ConsoleContext, speaker: Principal) -> Sequence[str]:
    """Classes from the key's down. A request for a higher class than the key's gets the key's."""
    names = context.classes.names
    return names[names.index(context.classes.of_tier(speaker.tier).name) :]


def _prices(context: ConsoleContext, tiers: Sequence[str], tenant_id: str) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """By model or adapter of the tenant, and by class: nanodollars of a token of the prompt, of one of it from the
    cache, and of the answer."""
    now = context.now()
    priced = {model: ("", model, Decimal(1)) for model in context.engine.models}
    for each in context.adapters.of_tenant(tenant_id):
        priced.setdefault(each.name, (each.id, each.model, each.price_multiplier))
    prices: dict[str, dict[str, Sequence[int]]] = {}
    for name, of in priced.items():
        for tier in tiers:
            try:
                price = context.prices.price_of_adapter(*of, tier, now)
            except NoPrice:
                continue
            prices.setdefault(name, {})[tier] = (price.prompt, price.cached_prompt, price.completion)
    return prices


def proxies(context: ConsoleContext) -> list[TenantProxy]:
    return [TenantProxy(path=PASSAGE_PATH, to=API_PATH, app=context.chat)]
