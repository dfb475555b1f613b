"""All screens of the console, in the order of the navigation."""

from collections.abc import Sequence

from gateway.management.console import (
    adapters,
    administrators,
    alerts,
    audit,
    credit,
    invoices,
    keys,
    limits,
    models,
    overview,
    playground,
    prices,
    reconciliation,
    refusals,
    requests,
    routing,
    scheduler,
    settings,
    tenants,
    usage,
)
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import Screen, TenantProxy

_MODULES = (
    overview,
    usage,
    requests,
    refusals,
    models,
    alerts,
    scheduler,
    routing,
    playground,
    tenants,
    keys,
    limits,
    adapters,
    credit,
    invoices,
    prices,
    reconciliation,
    audit,
    administrators,
    settings,
)
"""Each has `SCREENS`."""


def every_screen(context: ConsoleContext) -> tuple[Screen, ...]:
    return tuple(screen for module in _MODULES for screen in module.SCREENS.bind(context))


def every_passage(context: ConsoleContext) -> Sequence[TenantProxy]:
    return playground.proxies(context)
