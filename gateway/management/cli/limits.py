"""turnpike limit"""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.keys import require_public_id
from gateway.management.cli.managed import managed
from gateway.management.cli.options import AsJson, TenantFilter, TenantOption
from gateway.management.cli.output import Column, print_list

if TYPE_CHECKING:
    from gateway.management.client import AdminClient

UNLIMITED = "none"
LIMITS = (
    "requests_per_minute",
    "tokens_per_minute",
    "tokens_per_day",
    "concurrent",
    "context_tokens",
    "nanodollars_per_month",
)
_DOLLARS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


@managed
def set_limits(
    client: "AdminClient",
    tenant: TenantOption,
    key: Annotated[
        str | None, typer.Option("--key", metavar="ID", help="Public id of the key that the limits apply to.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model that the limits apply to, as this tenant uses it.")
    ] = None,
    requests_per_minute: Annotated[
        str | None, typer.Option("--requests-per-minute", metavar="N", help="Requests admitted in any 60 seconds.")
    ] = None,
    tokens_per_minute: Annotated[
        str | None, typer.Option("--tokens-per-minute", metavar="N", help="Tokens of prompts and answers together.")
    ] = None,
    tokens_per_day: Annotated[str | None, typer.Option("--tokens-per-day", metavar="N", help="Per day in UTC.")] = None,
    concurrent: Annotated[
        str | None, typer.Option("--concurrent", metavar="N", help="Maximum number of requests in flight.")
    ] = None,
    context_tokens: Annotated[
        str | None,
        typer.Option("--context-tokens", metavar="N", help="Tokens of a request's prompt and answer together."),
    ] = None,
    dollars_per_month: Annotated[
        str | None, typer.Option("--dollars-per-month", metavar="D", help="Per calendar month in UTC, as in 12.50.")
    ] = None,
) -> None:
    """Change some limits of a tenant, of one of its keys, or of a model as it uses it. `none` removes a limit.
    Running gateways apply it within 5 seconds."""
    given = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "tokens_per_day": tokens_per_day,
        "concurrent": concurrent,
        "context_tokens": context_tokens,
    }
    changes = {name: parse_count(name, text) for name, text in given.items() if text is not None}
    if dollars_per_month is not None:
        changes["nanodollars_per_month"] = parse_dollars(dollars_per_month)
    if not changes:
        raise typer.BadParameter("give at least one limit to change")

    kind, scope_id = _scope(key, model)
    members = {
        "kind": kind,
        "scope_id": scope_id,
        **changes,
        "remove": [name for name, value in changes.items() if value is None] or None,
    }
    changed = client.change("updateLimits", client.tenant_path(tenant), members)
    whose = f"{changed['kind']} {changed['scope_id']} of tenant {tenant}" if changed["scope_id"] else f"tenant {tenant}"
    typer.echo(f"changed the limits of {whose}")


@managed
def list_all(client: "AdminClient", tenant: TenantFilter = None, as_json: AsJson = False) -> None:
    """List the explicit limits. The others of a tenant are the defaults of its tier."""
    columns: tuple[Column, ...] = (
        ("TENANT", "tenant"),
        ("KIND", "kind"),
        ("SCOPE", "scope_id"),
        *((name.replace("_", " ").upper(), name) for name in LIMITS[:-1]),
        ("DOLLARS PER MONTH", lambda stated: _dollars(stated["nanodollars_per_month"])),
    )
    found = client.items("listStatedLimits", query=client.tenant_query(tenant))
    empty = "no limits are set: turnpike limit set --tenant NAME --requests-per-minute N"
    print_list(found, columns, as_json=as_json, empty=empty)


@managed
def show(client: "AdminClient", tenant: TenantOption, as_json: AsJson = False) -> None:
    """Show the counters of a tenant's limits: used, held by running requests, remaining."""
    use = client.read("readLimitUse", client.tenant_path(tenant))
    columns = (
        ("KIND", "kind"),
        ("SCOPE", "scope_id"),
        ("LIMIT OF", "name"),
        ("LIMIT", "limit"),
        ("USED", "used"),
        ("HELD", "held"),
        ("REMAINING", "remaining"),
        ("RESETS IN S", lambda counter: -(-counter["reset_ms"] // 1000) or None),
    )
    print_list(use["data"], columns, as_json=as_json, empty=f"tenant {tenant} has no limits of its own")


def parse_count(name: str, text: str) -> int | None:
    """
    Raises:
        typer.BadParameter: neither a whole number nor `none`.
    """
    if text == UNLIMITED:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"--{name.replace('_', '-')} takes a whole number, or {UNLIMITED}")
    return int(text)


def parse_dollars(text: str) -> int | None:
    """Nanodollars, exactly.

    Raises:
        typer.BadParameter: not an amount of whole nanodollars, nor `none`.
    """
    if text == UNLIMITED:
        return None
    if not _DOLLARS.fullmatch(text):
        raise typer.BadParameter(
            f"--dollars-per-month takes dollars with at most nine decimals, as in 12.50, or {UNLIMITED}"
        )
    return int(Decimal(text).scaleb(9))


def _scope(key: str | None, model: str | None) -> tuple[str, str | None]:
    """The kind of a scope and its id."""
    if key is not None and model is not None:
        raise typer.BadParameter("--key and --model exclude each other")
    if key is not None:
        return "key", require_public_id(key, "--key takes")
    return ("tenant", None) if model is None else ("model", model)


def _dollars(nanodollars: int | None) -> str | None:
    from gateway.billing.money import dollars

    return None if nanodollars is None else dollars(nanodollars)
