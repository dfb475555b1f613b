"""turnpike usage, turnpike cost, turnpike route shares"""

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsCsv, AsJson, Since, TenantFilter, Until
from gateway.management.cli.output import Column, print_csv, print_list
from gateway.management.cli.parsing import optional_time

if TYPE_CHECKING:
    from gateway.management.client import AdminClient


class Group(StrEnum):
    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"
    TIER = "tier"


class Bucket(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


BucketOption = Annotated[Bucket, typer.Option("--bucket", help="Length of the time buckets.")]
NONE = "nothing was used in this time: see --since, and turnpike request list"


@managed
def show(
    client: "AdminClient",
    tenant: TenantFilter = None,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Only this key, by its public id.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None,
    tier: Annotated[str | None, typer.Option("--tier", help="Only this service class.")] = None,
    by: Annotated[list[Group] | None, typer.Option("--by", help="Group by this. Repeatable.")] = None,
    bucket: BucketOption = Bucket.HOUR,
    since: Since = None,
    until: Until = None,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:
    """Show usage over time: requests, tokens and their cost, of the last 24 hours by default."""
    query = {
        **client.tenant_query(tenant),
        "key_id": key,
        "model": model,
        "tier": tier,
        "by": ",".join(by) if by else None,
        "bucket": bucket.value,
        "start": optional_time("--since", since),
        "end": optional_time("--until", until),
    }
    found = client.read("readUsage", query=query)
    if as_csv:
        print_csv(found["data"])
        return
    groups: list[Column] = [(each.value.upper(), each.value) for each in by or ()]
    columns = (
        ("START", "start"),
        *groups,
        ("REQUESTS", "events"),
        ("PROMPT TOKENS", "prompt_tokens"),
        ("CACHED", "cached_tokens"),
        ("ANSWER TOKENS", "completion_tokens"),
        ("DOLLARS", "cost_dollars"),
    )
    print_list(found["data"], columns, as_json=as_json, empty=NONE)


@managed
def latencies(
    client: "AdminClient",
    tenant: TenantFilter = None,
    by: Annotated[list[Group] | None, typer.Option("--by", help="Group by this. Repeatable.")] = None,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Show percentiles of latencies in milliseconds, of the last 24 hours by default."""
    query = {**client.tenant_query(tenant), "by": ",".join(by) if by else None, **_window(since, until)}
    found = client.read("readLatencies", query=query)
    groups: list[Column] = [(each.value.upper(), each.value) for each in by or ()]
    measures = (("FIRST TOKEN", "ttft_ms"), ("BETWEEN TOKENS", "itl_ms"), ("WHOLE", "total_latency_ms"))
    percentiles: list[Column] = [
        (f"{heading} {name.upper()}", partial(_percentile, measure=measure, name=name))
        for heading, measure in measures
        for name in ("p50", "p95")
    ]
    print_list(found["data"], (*groups, ("REQUESTS", "events"), *percentiles), as_json=as_json, empty=NONE)


@managed
def costs(client: "AdminClient", since: Since = None, until: Until = None, as_json: AsJson = False) -> None:
    """Show the cost and revenue of engine time by class and tenant, of the last 24 hours by default."""
    found = client.read("readCosts", query=_window(since, until))
    columns = (
        ("CLASS", "tier"),
        ("TENANT ID", "tenant_id"),
        ("ENGINE S", lambda row: f"{row['engine_ns'] / 1e9:.3f}"),
        ("COST", "cost_dollars"),
        ("REVENUE", "revenue_dollars"),
        ("MARGIN", "margin_dollars"),
    )
    print_list(found["data"], columns, as_json=as_json, empty=NONE)


@managed
def shares(
    client: "AdminClient",
    tenant: TenantFilter = None,
    bucket: BucketOption = Bucket.DAY,
    since: Since = None,
    until: Until = None,
    as_json: AsJson = False,
) -> None:
    """Show how many requests each model answered, by the reason of its selection."""
    query = {**client.tenant_query(tenant), "bucket": bucket.value, **_window(since, until)}
    found = client.read("readRouteShares", query=query)
    columns = (
        ("START", "start"),
        ("REQUESTED", "requested_model"),
        ("SERVED BY", "served_model"),
        ("REASON", "route_reason"),
        ("REQUESTS", "events"),
        ("DOLLARS", "cost_dollars"),
    )
    print_list(found["data"], columns, as_json=as_json, empty=NONE)


def _percentile(row: dict[str, Any], measure: str, name: str) -> str:
    return "" if row[measure] is None else f"{row[measure][name]:.1f}"


def _window(since: str | None, until: str | None) -> dict[str, str | None]:
    return {"start": optional_time("--since", since), "end": optional_time("--until", until)}
