"""turnpike price"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.management.cli.managed import managed, warn
from gateway.management.cli.options import AsJson
from gateway.management.cli.output import print_list
from gateway.management.cli.parsing import optional_time

if TYPE_CHECKING:
    from gateway.management.client import AdminClient

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")

InputPrice = Annotated[str, typer.Option("--input", metavar="D", help="Dollars per million tokens of prompts.")]
OutputPrice = Annotated[str, typer.Option("--output", metavar="D", help="Dollars per million tokens of answers.")]
CachedPrice = Annotated[
    str | None,
    typer.Option(
        "--cached",
        metavar="D",
        help="Dollars per million prompt tokens from the prefix cache. [default: as --input]",
    ),
]


@managed
def set_price(
    client: "AdminClient",
    model: Annotated[str, typer.Argument(help="Served name of the model.")],
    input: InputPrice,
    output: OutputPrice,
    cached: CachedPrice = None,
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
) -> None:
    """Set a model's price from a given time on. Running gateways apply it within seconds. Earlier usage keeps its
    price."""
    multipliers = [
        {"tier": tier, "multiplier": f"{each:f}"} for tier, each in parse_multipliers(multiplier or []).items()
    ]
    start = optional_time("--effective-from", effective_from)
    create_price(client, model, input, output, cached, effective_from=start, multipliers=multipliers)


def create_price(
    client: "AdminClient",
    model: str,
    input: str,
    output: str,
    cached: str | None,
    *,
    warns: bool = True,
    **members: Any,
) -> None:
    """Set a price and print it. `warns` of a model that is not served. `members`: others of the operation's.

    Raises:
        typer.BadParameter: an amount is no number.
    """
    for option, number in (("--input", input), ("--output", output), ("--cached", cached)):
        if number is not None:
            parse_number(option, number)
    body = {"model": model, "input": input, "output": output, "cached_input": cached, **members}
    added = client.change("createPrice", body=body)
    typer.echo(
        f"{model} costs from {added['effective_from']} on: input {added['input_dollars_per_million']}, cached input "
        f"{added['cached_input_dollars_per_million']}, output {added['output_dollars_per_million']} dollars per "
        f"million tokens ({_multipliers(added)})"
    )
    if warns and added["served"] is False:
        warn(f"no model is served as {model}: turnpike serve --model {model}=PATH")


@managed
def list_all(client: "AdminClient", as_json: AsJson = False) -> None:
    """List all prices: past, current and future. Amounts are dollars per million tokens, before the multiplier of a
    class."""
    columns = (
        ("MODEL", "model"),
        ("EFFECTIVE FROM", "effective_from"),
        ("INPUT", "input_dollars_per_million"),
        ("CACHED INPUT", "cached_input_dollars_per_million"),
        ("OUTPUT", "output_dollars_per_million"),
        ("MULTIPLIERS", _multipliers),
    )
    empty = "no prices yet: turnpike price set MODEL --input DOLLARS --output DOLLARS"
    print_list(client.items("listPrices"), columns, as_json=as_json, empty=empty)


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


def _multipliers(price: Mapping[str, Any]) -> str:
    return ", ".join(f"{each['tier']} x{each['multiplier']}" for each in price["multipliers"])
