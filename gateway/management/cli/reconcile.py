"""turnpike reconcile"""

import dataclasses
import sqlite3
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_json
from gateway.management.cli.store import with_database

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.config.settings import Settings
    from gateway.metering.reconciliation.reconciliation import Reconciliation

DAY_MS = 86_400_000


def reconcile(
    start: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Start, ISO 8601, UTC without an offset. [default: 24 h before --to]"
        ),
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End. [default: now]")] = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """Compare this gateway's journal with the usage in ClickHouse, by hour and by event, and verify the signatures of
    events of other gateways. Exits with 1 if they differ."""
    now_ms = time.time_ns() // 1_000_000
    end_ms = now_ms if end is None else parse_time(end)
    start_ms = end_ms - DAY_MS if start is None else parse_time(start)
    if start_ms >= end_ms:
        raise typer.BadParameter("--from must be before --to")
    settings = settings_from(data_dir=data_dir)
    found = with_database(settings, lambda database: _reconciled(settings, database, start_ms, end_ms, now_ms))
    if as_json:
        print_json({"drift": found.drift, **dataclasses.asdict(found)})
    else:
        for line in _lines(found):
            typer.echo(line)
    if found.drift:
        raise typer.Exit(1)


def parse_time(text: str) -> int:
    """Unix milliseconds.

    Raises:
        typer.BadParameter: no time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no time, as in 2026-11-21 or 2026-11-21T10:00:00+01:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


async def _reconciled(
    settings: "Settings", database: "AsyncEngine", start_ms: int, end_ms: int, now_ms: int
) -> "Reconciliation":
    from gateway.analytics import migrate, open_analytics
    from gateway.analytics.sums import TimeRange
    from gateway.billing.invoicing import invoiced_reader
    from gateway.config.pepper import load_pepper
    from gateway.errors import OperatorError
    from gateway.metering.reconciliation.reconciliation import reconcile
    from gateway.metering.signature import EventSigner, SignaturePolicy

    signatures = SignaturePolicy(EventSigner(load_pepper(settings)), settings.usage_accept_unsigned_until)
    analytics = open_analytics(settings.analytics_url.get_secret_value())
    try:
        await migrate(analytics)
        window, invoiced = TimeRange(start_ms, end_ms), invoiced_reader(database)
        return await reconcile(settings.journal_path, analytics, window, signatures, now_ms=now_ms, invoiced=invoiced)
    except sqlite3.Error as error:
        raise OperatorError(f"the journal {settings.journal_path} cannot be read: {error}") from error
    finally:
        await analytics.aclose()


def _lines(found: "Reconciliation") -> list[str]:
    lines = [
        f"{name:8} {total.events:12} events {total.prompt_tokens + total.completion_tokens:16} tokens "
        f"{total.cost_nanodollars:20} nanodollars"
        for name, total in (("journal", found.journal), ("stored", found.stored), ("pending", found.pending))
    ]
    for kind in ("missing", "doubled", "altered", "copies"):
        lines += [
            f"{kind}: event {each.event_id}, sequence {each.sequence} {each.detail}".rstrip()
            for each in getattr(found, kind)
        ]
    lines += [
        f"unknown source: {each.source!r}, {each.rows} rows, {each.cost_nanodollars} nanodollars"
        for each in found.unknown_sources
    ]
    lines += [
        f"unauthenticated: event {each.event_id}, source {each.source!r}, sequence {each.sequence}, tenant "
        f"{each.tenant_id!r}, {each.cost_nanodollars} nanodollars: {each.detail}"
        for each in found.unauthenticated
    ]
    if found.former_rows:
        lines.append(f"unsigned: {found.former_rows} rows of a former version, which cannot be verified")
    lines += [f"missing: sequences {gap.first} to {gap.last}" for gap in found.missing_ranges]
    for hour in found.hours:
        when = datetime.fromtimestamp(hour.hour_ms / 1000, UTC).isoformat(timespec="minutes")
        lines.append(
            f"drift: hour {when}: events {hour.journal.events} != {hour.stored.events} + {hour.pending.events}, "
            f"nanodollars {hour.journal.cost_nanodollars} != {hour.stored.cost_nanodollars} + "
            f"{hour.pending.cost_nanodollars}"
        )
    lines += [
        f"late: month {each.month}, tenant {each.tenant_id}: "
        f"{each.used_nanodollars - each.invoiced_nanodollars} nanodollars for the next invoice"
        for each in found.late
    ]
    lines += [
        f"drift: month {each.month}, tenant {each.tenant_id}: used {each.used_nanodollars} nanodollars, "
        f"invoiced {each.invoiced_nanodollars}"
        for each in found.months
    ]
    return [*lines, "they differ" if found.drift else "they agree"]
