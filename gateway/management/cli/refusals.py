"""turnpike refusals"""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_records
from gateway.management.cli.reconcile import DAY_MS, parse_time
from gateway.management.cli.store import with_operations

if TYPE_CHECKING:
    from gateway.analytics import Analytics
    from gateway.analytics.refusals import RefusalDimension
    from gateway.analytics.sums import TimeRange
    from gateway.management.operations.local import LocalOperations


class Group(StrEnum):
    """Words to group refusals by, those of the admin API."""

    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"
    ENDPOINT = "endpoint"
    CODE = "code"
    LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class RefusalLine:
    """A line of `turnpike refusals`: requests that are equal in all columns but the last. Columns that the requests are
    not grouped by are None."""

    last_at: str
    tenant: str | None
    key: str | None
    model: str | None
    endpoint: str | None
    status: int | None
    code: str | None
    limit: str | None
    requests: int
    request_id: str | None = None


def refusals(
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant, by its name.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Only this key, by its public id.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model, as requests named it.")] = None,
    code: Annotated[str | None, typer.Option("--code", help="Only this error code, as in rate_limit_exceeded.")] = None,
    by: Annotated[list[Group] | None, typer.Option("--by", help="Count requests, grouped by this. Repeatable.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Start, ISO 8601. [default: 24 h before --until]")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="End. [default: now]")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of lines.")] = 50,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """List refused requests, newest first, or count them. Equal refusals of a minute are one line."""
    end_ms = time.time_ns() // 1_000_000 if until is None else parse_time(until)
    start_ms = end_ms - DAY_MS if since is None else parse_time(since)
    if start_ms >= end_ms:
        raise typer.BadParameter("--since must be before --until")

    async def read(operations: "LocalOperations") -> list[RefusalLine]:
        from gateway.analytics.prepared import PreparedAnalytics
        from gateway.analytics.refusals import RefusalDimension
        from gateway.analytics.sums import TimeRange
        from gateway.tenancy import TenantStore

        given = {RefusalDimension.KEY: key, RefusalDimension.MODEL: model, RefusalDimension.CODE: code}
        only = {dimension: value for dimension, value in given.items() if value is not None}
        if tenant is not None:
            only[RefusalDimension.TENANT] = (await operations.path_of(tenant))["tenant_id"]
        analytics, window = PreparedAnalytics(operations.context.analytics), TimeRange(start_ms, end_ms)
        tenants = await TenantStore(operations.context.database, operations.context.pepper).list_tenants()
        names = {each.id: each.name for each in tenants}
        if by:
            return await _counted(analytics, window, by, only, names, limit)
        return await _listed(analytics, window, only, names, limit)

    lines = with_operations(settings_from(data_dir=data_dir), read)
    shown = [each.value for each in Group if each in by] if by else [each.value for each in Group]
    status = () if by else ("status",)
    print_records(lines, ("last_at", *shown, *status, "requests"), as_json=as_json)


async def _listed(
    analytics: "Analytics",
    window: "TimeRange",
    only: "dict[RefusalDimension, str]",
    names: dict[str, str],
    limit: int,
) -> list[RefusalLine]:
    from gateway.analytics.refusals import latest_refusals

    page = await latest_refusals(analytics, window, only=only, limit=limit)
    return [
        RefusalLine(
            last_at=each.occurred_at.isoformat(timespec="seconds"),
            tenant=names.get(each.tenant_id, each.tenant_id),
            key=each.key_id,
            model=each.model,
            endpoint=each.endpoint,
            status=each.status,
            code=each.code,
            limit=each.limit_name,
            requests=each.requests,
            request_id=each.request_id,
        )
        for each in page.refusals
    ]


async def _counted(
    analytics: "Analytics",
    window: "TimeRange",
    by: list[Group],
    only: "dict[RefusalDimension, str]",
    names: dict[str, str],
    limit: int,
) -> list[RefusalLine]:
    from gateway.analytics.refusals import count_refusals
    from gateway.common.timestamps import utc_from_ms
    from gateway.management.operations.refusals import REFUSED_BY

    dimensions = [REFUSED_BY[each.value] for each in by]
    lines = []
    for count in await count_refusals(analytics, window, by=dimensions, only=only, limit=limit):
        words = {each.value: count.of.get(REFUSED_BY[each.value]) for each in Group}
        tenant_id = words.pop("tenant")
        tenant = None if tenant_id is None else names.get(tenant_id, tenant_id)
        last_at = utc_from_ms(count.last_ms).isoformat(timespec="seconds")
        lines.append(RefusalLine(last_at=last_at, tenant=tenant, status=None, requests=count.requests, **words))
    return lines
