"""turnpike request"""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsCsv, AsJson, Limit, Since, TenantFilter, Until
from gateway.management.cli.output import print_csv, print_list, print_record
from gateway.management.cli.parsing import optional_time

if TYPE_CHECKING:
    from gateway.management.client import AdminClient


@managed
def list_all(
    client: "AdminClient",
    tenant: TenantFilter = None,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="Only this key, by its public id.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Only this model.")] = None,
    finish_reason: Annotated[
        str | None, typer.Option("--finish-reason", help="Only requests that ended so, as in length.")
    ] = None,
    http_status: Annotated[
        int | None, typer.Option("--http-status", metavar="STATUS", help="Only requests with this status, as in 500.")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option("--adapter", metavar="ID", help="Only requests of this adapter, by its id.")
    ] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 50,
    as_csv: AsCsv = False,
    as_json: AsJson = False,
) -> None:
    """List requests, newest first, of the last 24 hours by default."""
    query = {
        **client.tenant_query(tenant),
        "key_id": key,
        "model": model,
        "finish_reason": finish_reason,
        "http_status": None if http_status is None else str(http_status),
        "adapter_id": adapter,
        "start": optional_time("--since", since),
        "end": optional_time("--until", until),
    }
    columns = (
        ("ENDED AT", "occurred_at"),
        ("REQUEST", "request_id"),
        ("KEY", "key_id"),
        ("MODEL", "model"),
        ("PROMPT", "prompt_tokens"),
        ("ANSWER", "completion_tokens"),
        ("FINISH", "finish_reason"),
        ("STATUS", "http_status"),
        ("TTFT MS", "ttft_ms"),
        ("MS", "total_latency_ms"),
        ("DOLLARS", "cost_dollars"),
    )
    found = client.items("listRequests", query=query, limit=limit or None)
    if as_csv:
        print_csv(found)
        return
    print_list(found, columns, as_json=as_json, empty="no requests in this time: see --since")


@managed
def show(
    client: "AdminClient",
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="Its id, as in the answer.")],
    near: Annotated[
        str | None,
        typer.Option("--near", metavar="TIME", help="About when it ended. [default: in the last 7 days]"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a request consumed, what it cost and where its time went."""
    query = {"near": optional_time("--near", near)}
    print_record(client.read("readRequest", {"request_id": request_id}, query), as_json=as_json)
