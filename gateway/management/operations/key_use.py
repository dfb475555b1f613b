"""Use of tenants' keys: last use, spending and creator, which their records do not hold."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.analytics import AnalyticsAway
from gateway.analytics.key_use import KeyUse, key_use
from gateway.billing.month import Month
from gateway.common.timestamps import unix_ms, utc_from_ms
from gateway.management.operations.actors import actor_names
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import MAX_PAGE
from gateway.management.operations.roles import READERS
from gateway.management.operations.routes import PATH_KINDS, OperationInput, Routes
from gateway.management.operations.schema import (
    Boolean,
    Instant,
    Kind,
    ListOf,
    Member,
    Text,
    answer,
    nullable,
    optional,
)
from gateway.management.operations.tables import AuditRow
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import KEY_ID, TENANT_ID, TENANT_NAME, money, money_members
from gateway.tenancy.tables import KeyRow, TenantRow

_MEMBERS: dict[str, Member | Kind] = {
    "id": KEY_ID,
    "tenant_id": TENANT_ID,
    "tenant": TENANT_NAME,
    "tenant_is_suspended": Boolean(),
    "last_used_at": nullable(
        Instant(), "Start of the last hour with a billed request; null: never used, or unknown with `month_spent_...`."
    ),
    "month": PATH_KINDS["month"],
    "created_by": nullable(
        Text(128), "Administrator, `command-line:` and the user's name, or null: before the audit log."
    ),
}
KEY_USE = answer("KeyUse", _MEMBERS | money_members("month_spent", known=False))

ROUTES = Routes()


@ROUTES.get(
    "/key-use",
    READERS,
    answer("KeyUses", {"data": ListOf(KEY_USE, MAX_PAGE)}),
    query={
        "ids": Member(ListOf(KEY_ID, MAX_PAGE, 1), "Keys, separated by commas. Unknown ones are left out."),
        "tenant_id": optional(TENANT_ID, "Only keys of this tenant."),
    },
)
async def read_key_use(context: AdminContext, call: OperationInput) -> Any:
    """Read when keys were last used, what they spent this month, and who created them. While the usage store is away,
    use and spending are null."""
    ids = call.query["ids"]
    async with context.reading() as connection:
        keys = await _keys(connection, ids, call.query["tenant_id"])
        creators = await _creators(connection, [key.public_id for key in keys])
    month = Month.of(context.now())
    used = await _use(context, keys, month) if keys else {}
    return {"data": [_wire(key, used, month, creators.get(key.public_id)) for key in keys]}


async def _keys(connection: AsyncConnection, ids: Sequence[str], tenant_id: str | None) -> Sequence[Any]:
    columns = (KeyRow.public_id, KeyRow.tenant_id, TenantRow.name, TenantRow.disabled_at)
    query = select(*columns).join(TenantRow, TenantRow.id == KeyRow.tenant_id).where(KeyRow.public_id.in_(ids))
    if tenant_id is not None:
        query = query.where(KeyRow.tenant_id == tenant_id)
    return (await connection.execute(query.order_by(KeyRow.public_id))).all()


async def _creators(connection: AsyncConnection, ids: Sequence[str]) -> Mapping[str, str]:
    """The names of who created keys, by key, as the audit log says."""
    query = select(AuditRow.resource_id, AuditRow.actor).where(
        AuditRow.resource == "key", AuditRow.resource_id.in_(ids), AuditRow.action == "create"
    )
    actors = {row.resource_id: row.actor for row in await connection.execute(query)}
    names = await actor_names(connection, list(actors.values()))
    return {key_id: names[actor] for key_id, actor in actors.items()}


async def _use(context: AdminContext, keys: Sequence[Any], month: Month) -> Mapping[str, KeyUse] | None:
    """None: the usage store is away."""
    ids, tenants = [key.public_id for key in keys], sorted({key.tenant_id for key in keys})
    try:
        return await key_use(context.analytics, ids, tenants, since_ms=unix_ms(month.start))
    except AnalyticsAway:
        return None


def _wire(key: Any, used: Mapping[str, KeyUse] | None, month: Month, creator: str | None) -> dict[str, Any]:
    use = None if used is None else used.get(key.public_id)
    spent = None if used is None else 0 if use is None else use.spent_nanodollars
    return {
        "id": key.public_id,
        "tenant_id": key.tenant_id,
        "tenant": key.name,
        "tenant_is_suspended": key.disabled_at is not None,
        "last_used_at": None if use is None else instant(utc_from_ms(use.last_used_ms)),
        "month": str(month),
        "created_by": creator,
        **money("month_spent", spent),
    }
