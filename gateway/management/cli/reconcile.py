"""turnpike reconcile"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson
from gateway.management.cli.output import print_json
from gateway.management.cli.parsing import optional_time

if TYPE_CHECKING:
    from gateway.management.client import AdminClient


@managed
def reconcile(
    client: "AdminClient",
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Start, ISO 8601, UTC without an offset. [default: 24 h before --to]"
        ),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End. [default: now]")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the gateway's journal with the usage in ClickHouse, by hour and by event, and verify the signatures of
    events of other gateways. Exits with 1 if they differ."""
    query = {"start": optional_time("--from", start), "end": optional_time("--to", end)}
    found = client.read("readReconciliation", query=query)
    if as_json:
        print_json(found)
    else:
        for line in _lines(found):
            typer.echo(line)
    if found["drift"]:
        raise typer.Exit(1)


def _lines(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in ("journal", "stored", "pending"):
        total = found[name]
        tokens = total["prompt_tokens"] + total["completion_tokens"]
        lines.append(
            f"{name:8} {total['events']:12} events {tokens:16} tokens {total['cost_nanodollars']:20} nanodollars"
        )
    for kind in ("missing", "doubled", "altered", "copies"):
        lines += [
            f"{kind}: event {each['event_id']}, sequence {each['sequence']} {each['detail']}".rstrip()
            for each in found[kind]
        ]
    lines += [
        f"unknown source: {each['source']!r}, {each['rows']} rows, {each['cost_nanodollars']} nanodollars"
        for each in found["unknown_sources"]
    ]
    lines += [
        f"unauthenticated: event {each['event_id']}, source {each['source']!r}, sequence {each['sequence']}, tenant "
        f"{each['tenant_id']!r}, {each['cost_nanodollars']} nanodollars: {each['detail']}"
        for each in found["unauthenticated"]
    ]
    if found["former_rows"]:
        lines.append(f"unsigned: {found['former_rows']} rows of a former version, which cannot be verified")
    lines += [f"missing: sequences {gap['first']} to {gap['last']}" for gap in found["missing_ranges"]]
    lines += [_hour_line(each) for each in found["hours"]]
    lines += [
        f"late: month {each['month']}, tenant {each['tenant_id']}: "
        f"{each['used_nanodollars'] - each['invoiced_nanodollars']} nanodollars for the next invoice"
        for each in found["late"]
    ]
    lines += [
        f"drift: month {each['month']}, tenant {each['tenant_id']}: used {each['used_nanodollars']} nanodollars, "
        f"invoiced {each['invoiced_nanodollars']}"
        for each in found["months"]
    ]
    return [*lines, "they differ" if found["drift"] else "they agree"]


def _hour_line(hour: Mapping[str, Any]) -> str:
    when = datetime.fromtimestamp(hour["hour_ms"] / 1000, UTC).isoformat(timespec="minutes")
    journal, stored, pending = (hour[name] for name in ("journal", "stored", "pending"))
    return (
        f"drift: hour {when}: events {journal['events']} != {stored['events']} + {pending['events']}, nanodollars "
        f"{journal['cost_nanodollars']} != {stored['cost_nanodollars']} + {pending['cost_nanodollars']}"
    )
