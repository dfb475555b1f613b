"""turnpike refusals"""

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson, Limit, Since, TenantFilter, Until
from gateway.management.cli.output import Column, print_list
from gateway.management.cli.parsing import optional_time

if TYPE_CHECKING:
    from gateway.management.client import AdminClient


class Group(StrEnum):
    """Words to group refusals by, those of the admin API."""

    TENANT = "tenant"
    KEY = "key"
    MODEL = "model"
    ENDPOINT = "endpoint"
    CODE = "code"
    LIMIT = "limit"


@managed
def refusals(
    client: "AdminClient",
    tenant: TenantFilter = None,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Only this key, by its public id.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model, as requests named it.")] = None,
    code: Annotated[str | None, typer.Option("--code", help="Only this error code, as in rate_limit_exceeded.")] = None,
    by: Annotated[list[Group] | None, typer.Option("--by", help="Count requests, grouped by this. Repeatable.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List refused requests, newest first, or count them, of the last 24 hours by default. Equal refusals of a minute
    are one line."""
    query = {
        **client.tenant_query(tenant),
        "key_id": key,
        "model": model,
        "code": code,
        "start": optional_time("--since", since),
        "end": optional_time("--until", until),
    }
    names = {each["id"]: each["name"] for each in client.items("listTenants")}
    empty = "no request was refused in this time: see --since"
    if by:
        columns: list[Column] = [(each.value.upper(), each.value) for each in dict.fromkeys(by)]
        counts = _counts(client, query, list(dict.fromkeys(by)), names)
        print_list(counts[: limit or None], (*columns, ("REQUESTS", "requests")), as_json=as_json, empty=empty)
        return
    found = (
        {"tenant": names.get(each["tenant_id"], each["tenant_id"]), **each}
        for each in client.items("listRefusals", query=query, limit=limit or None)
    )
    print_list(found, _COLUMNS, as_json=as_json, empty=empty)


def _counts(
    client: "AdminClient", query: Mapping[str, str | None], by: list[Group], names: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Requests by group, the most first."""
    points = client.read("readRefusals", query={**query, "bucket": "day", "by": ",".join(by)})["data"]
    counts: Counter[tuple[str, ...]] = Counter()
    for point in points:
        counts[tuple(point[each.value] for each in by)] += point["requests"]
    rows = [{**dict(zip(by, of, strict=True)), "requests": requests} for of, requests in counts.most_common()]
    return [
        {str(name): names.get(value, value) if name is Group.TENANT else value for name, value in row.items()}
        for row in rows
    ]


_COLUMNS: tuple[Column, ...] = (
    ("LAST AT", "occurred_at"),
    ("TENANT", "tenant"),
    ("KEY", "key_id"),
    ("MODEL", "model"),
    ("ENDPOINT", "endpoint"),
    ("CODE", "code"),
    ("LIMIT", "limit_name"),
    ("STATUS", "status"),
    ("REQUESTS", "requests"),
)
