"""turnpike limit"""

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_records
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from gateway.management.operations.local import LocalOperations
    from gateway.tenancy import ScopeKind

UNLIMITED = "none"
_DOLLARS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")


def set_limits(
    tenant: Annotated[str, typer.Option("--tenant", help="The tenant's name.")],
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
    data_dir: DataDir = None,
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

    async def change(operations: "LocalOperations") -> dict[str, Any]:
        path = await operations.path_of(tenant)
        body = {"kind": kind, "scope_id": scope_id, **changes}
        changed: dict[str, Any] = await operations.change("replaceLimits", path, body)
        return changed

    changed = with_operations(settings_from(data_dir=data_dir), change)
    whose = f"{changed['kind']} {changed['scope_id']} of tenant {tenant}" if changed["scope_id"] else f"tenant {tenant}"
    typer.echo(f"changed the limits of {whose}")


def list_all(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the explicit limits. The others of a tenant are the defaults of its tier."""
    from gateway.tenancy import LimitTable
    from gateway.tenancy.limits import LIMIT_NAMES

    records = with_database(settings_from(data_dir=data_dir), lambda database: LimitTable(database).list_limits())
    print_records(records, ("tenant_name", "kind", "scope_id", *LIMIT_NAMES), as_json=as_json)


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


def _scope(key: str | None, model: str | None) -> tuple["ScopeKind", str]:
    from gateway.tenancy import ScopeKind
    from gateway.tenancy.keys import is_public_id

    if key is not None and model is not None:
        raise typer.BadParameter("--key and --model exclude each other")
    if key is not None:
        if not is_public_id(key):  # perhaps a whole key: not repeated
            raise typer.BadParameter("--key takes the 12 characters between the dashes of a key")
        return ScopeKind.KEY, key
    return (ScopeKind.TENANT, "") if model is None else (ScopeKind.MODEL, model)
