"""turnpike price"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import OperatorError
from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_records
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from gateway.billing.prices import PriceVersion
    from gateway.management.operations.local import LocalOperations

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class PriceLine:
    """A line of `turnpike price list`: dollars per million tokens, before the multiplier of a class."""

    model: str
    effective_from: str
    input: str
    cached_input: str
    output: str
    multipliers: str
    version: str


def set_price(
    model: Annotated[str, typer.Argument(help="Served name of the model.")],
    input: Annotated[str, typer.Option("--input", metavar="D", help="Dollars per million tokens of prompts.")],
    output: Annotated[str, typer.Option("--output", metavar="D", help="Dollars per million tokens of answers.")],
    cached: Annotated[
        str | None,
        typer.Option(
            "--cached",
            metavar="D",
            help="Dollars per million prompt tokens from the prefix cache. [default: as --input]",
        ),
    ] = None,
    effective_from: Annotated[
        str | None,
        typer.Option("--effective-from", metavar="TIME", help="ISO 8601, UTC without an offset. [default: now]"),
    ] = None,
    multiplier: Annotated[
        list[str] | None,
        typer.Option(
            "--multiplier",
            metavar="CLASS=N",
            help="Price multiplier of a service class. Repeatable. [default: premium=3, others 1]",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Set a model's price from a given time on. Running gateways apply it within seconds. Earlier usage keeps its
    price."""
    from gateway.billing.price_store import read_versions
    from gateway.management.operations.prices import ClassMultiplier, NewPrice

    for option, number in (("--input", input), ("--output", output), ("--cached", cached)):
        if number is not None:
            parse_number(option, number)
    multipliers = [ClassMultiplier(tier, f"{each:f}") for tier, each in parse_multipliers(multiplier or []).items()]
    start = None if effective_from is None else parse_instant(effective_from)
    settings = settings_from(data_dir=data_dir)
    if model in settings.prices:  # the next start of a gateway would take this back
        raise OperatorError(f"the settings state the price of {model}: change it there, under prices")
    price = NewPrice(model, input, cached, output, multipliers, start)

    async def add(operations: "LocalOperations") -> "PriceVersion":
        added = await operations.change("createPrice", body=price)
        async with operations.context.reading() as connection:
            return next(version for version in await read_versions(connection) if version.id == added["id"])

    line = _line(with_operations(settings, add))
    typer.echo(
        f"{model} costs from {line.effective_from} on: input {line.input}, cached input {line.cached_input}, "
        f"output {line.output} dollars per million tokens ({line.multipliers})"
    )


def list_all(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List all prices: past, current and future."""
    from gateway.billing.price_store import PriceStore

    versions = with_database(settings_from(data_dir=data_dir), lambda database: PriceStore(database).versions())
    columns = ("model", "effective_from", "input", "cached_input", "output", "multipliers")
    print_records([_line(version) for version in versions], columns, as_json=as_json)


def parse_number(option: str, text: str) -> Decimal:
    """
    Raises:
        typer.BadParameter: not a number with at most nine decimals.
    """
    if not (text.isascii() and _NUMBER.fullmatch(text)):
        raise typer.BadParameter(f"{option} takes a number with at most nine decimals, as in 0.15")
    return Decimal(text)


def parse_multipliers(options: list[str]) -> dict[str, Decimal]:
    """
    Raises:
        typer.BadParameter: one that is not CLASS=N, or a class twice.
    """
    multipliers: dict[str, Decimal] = {}
    for option in options:
        tier, equals, number = option.partition("=")
        if not (tier and equals):
            raise typer.BadParameter(f"{option!r} is not CLASS=N, as in --multiplier premium=3")
        if tier in multipliers:
            raise typer.BadParameter(f"the class {tier!r} is given twice")
        multipliers[tier] = parse_number("--multiplier", number)
    return multipliers


def parse_instant(text: str) -> datetime:
    """
    Raises:
        typer.BadParameter: not ISO 8601.
    """
    try:
        instant = datetime.fromisoformat(text)
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter("--effective-from takes a time as in 2026-12-01T00:00:00Z") from None


def _line(version: "PriceVersion") -> PriceLine:
    from gateway.billing.money import dollars_per_million

    terms = version.terms
    return PriceLine(
        terms.model,
        version.effective_from.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        dollars_per_million(terms.input),
        dollars_per_million(terms.cached_input),
        dollars_per_million(terms.output),
        ", ".join(f"{tier} x{multiplier:f}" for tier, multiplier in sorted(terms.multipliers.items())),
        version.id,
    )
