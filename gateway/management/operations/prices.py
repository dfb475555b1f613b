"""Prices of models: versions, which are added and never changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import select

from gateway.adapters.tables import AdapterRow
from gateway.billing.books import lock_books
from gateway.billing.errors import InvalidPrice
from gateway.billing.money import dollars_per_million
from gateway.billing.price_store import add_version, declare_versions, read_versions
from gateway.billing.prices import PRICED, PriceTerms, PriceVersion
from gateway.billing.tables import PriceVersionRow
from gateway.http.errors import APIError, invalid
from gateway.management.operations.change import SETTINGS, Change, Changes
from gateway.management.operations.context import AdminContext
from gateway.management.operations.paging import PAGE_QUERY, Listing, page_of
from gateway.management.operations.roles import FINANCE, READERS
from gateway.management.operations.routes import OperationInput, Routes
from gateway.management.operations.schema import (
    Boolean,
    Instant,
    Integer,
    Kind,
    ListOf,
    Member,
    Record,
    Text,
    answer,
    nullable,
    optional,
)
from gateway.management.operations.timestamps import instant
from gateway.management.operations.wire import MODEL_NAME

MAX_MULTIPLIERS = 64

_NUMBER = Text(19, pattern=r"[0-9]{1,9}(\.[0-9]{1,9})?")
_CLASS = Text(64, pattern="[a-z0-9][a-z0-9_-]*")
_NEWEST = Listing("prices", (PriceVersionRow.model, PriceVersionRow.effective_from))

_MULTIPLIER = answer("Multiplier", {"tier": _CLASS, "multiplier": Text(32)})
_PRICE_MEMBERS: dict[str, Member | Kind] = {
    "id": Text(255),
    "model": MODEL_NAME,
    "effective_from": Instant(),
}
for _name in PRICED:
    _PRICE_MEMBERS[f"{_name}_nanodollars_per_token"] = Integer(0)
    _PRICE_MEMBERS[f"{_name}_dollars_per_million"] = Text(32)
PRICE = answer(
    "PriceVersion",
    _PRICE_MEMBERS
    | {"multipliers": Member(ListOf(_MULTIPLIER, MAX_MULTIPLIERS), "Of the classes that pay another price.")},
)
_NEW_PRICE_MEMBERS: dict[str, Member | Kind] = {
    **PRICE.members,
    "served": nullable(
        Boolean(),
        "Whether it is of a served model or an adapter; null: not known.",
    ),
}
CREATED_PRICE = answer("CreatedPriceVersion", _NEW_PRICE_MEMBERS)


@dataclass(frozen=True, slots=True)
class ClassMultiplier:
    tier: str
    multiplier: str


@dataclass(frozen=True, slots=True)
class NewPrice:
    model: str
    input: str
    cached_input: str | None
    output: str
    multipliers: list[ClassMultiplier] | None
    effective_from: datetime | None


ROUTES = Routes()
_NEW_MULTIPLIER = Record("NewMultiplier", ClassMultiplier, {"tier": Member(_CLASS), "multiplier": Member(_NUMBER)})
_PER_MILLION = "Dollars per million tokens."


@ROUTES.get("/prices", READERS, page_of("PricePage", PRICE), query={**PAGE_QUERY, "model": optional(MODEL_NAME)})
async def list_prices(context: AdminContext, call: OperationInput) -> Any:
    """List past, current and future prices, by model and start."""
    statement = select(PriceVersionRow.id, PriceVersionRow.model, PriceVersionRow.effective_from)
    if call.query["model"] is not None:
        statement = statement.where(PriceVersionRow.model == call.query["model"])
    async with context.reading() as connection:
        versions = {version.id: version for version in await read_versions(connection)}
        return await _NEWEST.page(
            connection, statement, call.query, context.cursors, lambda row: _wire(versions[row.id])
        )


@ROUTES.write(
    "POST",
    "/prices",
    FINANCE,
    CREATED_PRICE,
    body=Record(
        "NewPrice",
        NewPrice,
        {
            "model": Member(MODEL_NAME, "A served name, or the id of a tenant's adapter."),
            "input": Member(_NUMBER, _PER_MILLION),
            "cached_input": optional(_NUMBER, "Price of prompt tokens from the prefix cache. Default: as input."),
            "output": Member(_NUMBER, _PER_MILLION),
            "multipliers": optional(
                ListOf(_NEW_MULTIPLIER, MAX_MULTIPLIERS), "Multipliers by class. Default: premium 3, others 1."
            ),
            "effective_from": optional(Instant(), "Default: now."),
        },
    ),
    status=201,
)
async def create_price(context: AdminContext, change: Change, call: OperationInput) -> Any:
    """Set the price of a model from a given time on. Earlier usage keeps its price."""
    body: NewPrice = call.body
    if body.model in context.declared_prices:
        raise APIError(409, "The settings define this model's price. Change it there.", code="price_is_declared")
    terms = _terms(body)
    await lock_books(change.connection)
    version = _wire(await add_version(change.connection, terms, body.effective_from, change.at))
    change.record("create", "price", version["id"][:128], after=version)
    served = context.served_models
    is_adapter = await change.connection.scalar(select(AdapterRow.id).where(AdapterRow.id == body.model)) is not None
    return version | {"served": None if served is None else is_adapter or body.model in served}


async def declare_prices(changes: Changes, prices: Mapping[str, Sequence[Decimal]]) -> tuple[PriceVersion, ...]:
    """Have models cost from now on what a gateway's settings declare (`declare_versions`). Returns the new versions.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    if not prices:
        return ()
    async with changes.change(SETTINGS, "") as change:
        await lock_books(change.connection)
        versions = await declare_versions(change.connection, prices, change.at)
        for version in versions:
            change.record("create", "price", version.id[:128], after=_wire(version))
    return versions


def _terms(body: NewPrice) -> PriceTerms:
    """
    Raises:
        APIError: 400 naming the price that cannot be charged exactly.
    """
    multipliers = {each.tier: Decimal(each.multiplier) for each in body.multipliers or ()}
    if len(multipliers) < len(body.multipliers or ()):
        raise invalid("multipliers", "Duplicate class.")
    try:
        return PriceTerms.from_dollars(
            body.model,
            Decimal(body.input),
            Decimal(body.output),
            cached_input=None if body.cached_input is None else Decimal(body.cached_input),
            multipliers=multipliers,
        )
    except InvalidPrice as error:
        named = str(error).partition(":")[0]
        raise invalid(named if named in PRICED else "multipliers", f"{error}.") from None


def _wire(version: PriceVersion) -> dict[str, Any]:
    terms = version.terms
    said: dict[str, Any] = {
        "id": version.id,
        "model": terms.model,
        "effective_from": instant(version.effective_from),
    }
    for name in PRICED:
        said[f"{name}_nanodollars_per_token"] = getattr(terms, name)
        said[f"{name}_dollars_per_million"] = dollars_per_million(getattr(terms, name))
    return said | {
        "multipliers": [{"tier": tier, "multiplier": f"{each:f}"} for tier, each in sorted(terms.multipliers.items())]
    }
