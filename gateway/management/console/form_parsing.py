"""Parsing of form fields into values of the admin API: dollars, local timestamps, lines of pairs, lists of words."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from gateway.billing.errors import InvalidAmount
from gateway.billing.money import parse_dollars
from gateway.http.errors import APIError, invalid

_LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,3})?)?", re.ASCII)


def nanodollars_of(field: str, text: str) -> int | None:
    """Nanodollars of an amount in dollars; None for an empty field.

    Raises:
        APIError: 400 naming the field.
    """
    amount = text.strip()
    if not amount:
        return None
    try:
        return parse_dollars(amount.removeprefix("$"))
    except InvalidAmount as error:
        raise invalid(field, f"{str(error).capitalize()}.") from None


def moment_of(text: str) -> str | None:
    """The value of a `datetime-local` field, in UTC; None: empty. Any other text is returned unchanged, for the API to
    validate."""
    moment = text.strip()
    if _LOCAL.fullmatch(moment):
        return moment + (":00Z" if moment.count(":") == 1 else "Z")
    return moment or None


def local_of(moment: str | None) -> str:
    """A timestamp of the API as a `datetime-local` field shows it, to the minute."""
    return "" if moment is None else moment[:16]


def words_of(text: str) -> list[str] | None:
    """Words separated by commas or line breaks; None if there are none."""
    return [word for each in re.split(r"[,\n]", text) if (word := each.strip())] or None


def pairs_of(field: str, text: str, separator: str, example: str) -> list[tuple[str, str]]:
    """Pairs, one on each line, as in `example`.

    Raises:
        APIError: 400 naming the field, a line is no pair.
    """
    pairs = []
    for line in filter(None, map(str.strip, text.splitlines())):
        left, found, right = line.partition(separator)
        if not (found and left.strip() and right.strip()):
            raise invalid(field, f"Each line must be like this: {example}")
        pairs.append((left.strip(), right.strip()))
    return pairs


@contextmanager
def naming(**fields: str) -> Iterator[None]:
    """Rename the parameter of an error from the API's member to the form's field, where it is shown."""
    try:
        yield
    except APIError as error:
        if error.param in fields:
            error.param = fields[error.param]
        raise


@contextmanager
def chosen(code: str, field: str) -> Iterator[None]:
    """Turn a 404 with this code into an error of the field that named the missing record: the page itself exists."""
    try:
        yield
    except APIError as error:
        if error.status == 404 and error.code == code:
            raise invalid(field, error.message) from None
        raise
