"""Names in the place of ids: of the records on a page, and of those that a filter offers."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.http.errors import invalid
from gateway.management.console.context import ConsoleContext
from gateway.management.console.screens import PageRequest
from gateway.management.operations.routes import PATH_KINDS
from gateway.tenancy.names import (
    KeyLabel,
    first_keys,
    first_tenants,
    labels_of_keys,
    names_of_administrators,
    names_of_tenants,
    tenant_id_of,
)

MAX_OFFERED = 500
"""Tenants, and keys, in a filter. With more, a tenant's name is typed."""

Options = list[tuple[str, str]]
"""Values and texts of a select."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names by id. What is unknown, as a removed record, is shown by its id."""

    tenants: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    keys: Mapping[str, KeyLabel] = field(default_factory=lambda: MappingProxyType({}))
    administrators: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def tenant(self, id: str) -> str:
        return self.tenants.get(id, id)

    def key(self, id: str) -> str:
        return self.keys[id].text if id in self.keys else id


async def names_of(
    context: ConsoleContext,
    page_request: PageRequest,
    *,
    tenants: Iterable[str] = (),
    keys: Iterable[str] = (),
    administrators: Iterable[str] = (),
) -> Names:
    """Names of the records of a page. A tenant gets the names of its own keys alone."""
    principal = page_request.tenant
    async with context.admin.reading() as connection:
        if principal is not None:
            own = {principal.tenant_id: principal.tenant_name}
            return Names(own, await labels_of_keys(connection, set(keys), principal.tenant_id))
        return Names(
            await names_of_tenants(connection, set(tenants)),
            await labels_of_keys(connection, set(keys)),
            await names_of_administrators(connection, set(administrators)),
        )


@dataclass(frozen=True, slots=True)
class Pickers:
    """Choices of the filters of a page. `tenants` is None for a tenant's page. `tenants_typed`: there are more than
    `MAX_OFFERED`, so the filter takes a name and proposes these."""

    tenants: Options | None
    tenants_typed: bool
    keys: Options
    models: Options
    tiers: Options


async def pickers_of(context: ConsoleContext, page_request: PageRequest, chosen: Mapping[str, str]) -> Pickers:
    """The tenants, keys, models and classes to filter by. `chosen`: the filters in force, whose values are offered even
    if they would not be among these. With a tenant chosen, its keys alone are offered."""
    principal = page_request.tenant
    tenant_id = chosen.get("tenant_id") if principal is None else principal.tenant_id
    async with context.admin.reading() as connection:
        tenants = {} if principal is not None else dict(await first_tenants(connection, MAX_OFFERED + 1))
        keys = {each.id: each for each in await first_keys(connection, tenant_id, MAX_OFFERED)}
        if (key_id := chosen.get("key_id")) and key_id not in keys:
            keys |= await labels_of_keys(connection, [key_id], None if principal is None else tenant_id)
        owners = {each.tenant_id for each in keys.values()} | ({tenant_id} if tenant_id else set())
        if principal is None:
            tenants |= await names_of_tenants(connection, owners - tenants.keys())
    several = principal is None and not tenant_id
    return Pickers(
        tenants=None if principal is not None else with_option(list(tenants.items()), tenant_id),
        tenants_typed=len(tenants) > MAX_OFFERED,
        keys=with_option([(each.id, _key_text(each, tenants if several else {})) for each in keys.values()], key_id),
        models=with_option([(name, name) for name in _models(context, page_request)], chosen.get("model")),
        tiers=with_option([(name, name) for name in context.admin.tiers], chosen.get("tier")),
    )


async def resolved(context: ConsoleContext, page_request: PageRequest, filters: Mapping[str, str]) -> dict[str, str]:
    """Filters with the id of a tenant that was typed by its name.

    Raises:
        APIError: 400 naming `tenant_id`, no tenant has that name.
    """
    typed = filters.get("tenant_id")
    if typed is None or page_request.tenant is not None or _TENANT_ID.fullmatch(typed):
        return dict(filters)
    async with context.admin.reading() as connection:
        tenant_id = await tenant_id_of(connection, typed)
    if tenant_id is None:
        raise invalid("tenant_id", f"No tenant is named {typed}.")
    return {**filters, "tenant_id": tenant_id}


_TENANT_ID = re.compile(PATH_KINDS["tenant_id"].pattern or "")


def _models(context: ConsoleContext, page_request: PageRequest) -> list[str]:
    principal = page_request.tenant
    names = sorted({*context.engine.models, *context.prices.models})
    return [name for name in names if principal is None or principal.may_use(name)]


def _key_text(key: KeyLabel, tenants: Mapping[str, str]) -> str:
    owner = f"{tenants[key.tenant_id]} / " if key.tenant_id in tenants else ""
    return f"{owner}{key.text}{', revoked' if key.is_revoked else ''}"


def with_option(options: Options, value: str | None) -> Options:
    """With an option for `value`, as a link may name what is not offered."""
    return options if not value or any(each == value for each, _ in options) else [*options, (value, value)]
