"""Price versions in the SQL store."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from types import MappingProxyType

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.billing.books import reading
from gateway.billing.errors import PriceRefused
from gateway.billing.prices import PriceTerms, PriceVersion, parse_terms, to_ms, version_id
from gateway.billing.tables import PriceMultiplierRow, PriceVersionRow


class PriceStore:
    """Reads price versions. Every method raises `StoreUnavailable` if the database does not answer."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def versions(self) -> tuple[PriceVersion, ...]:
        """All versions, by model and start."""
        async with reading(self._database) as connection:
            return await read_versions(connection)


async def declare_versions(
    connection: AsyncConnection, prices: Mapping[str, Sequence[Decimal]], now: datetime
) -> tuple[PriceVersion, ...]:
    """Make the declared prices (`parse_terms`) effective from now on: a new version for each model whose price differs
    from the current one. Returns the new versions. The caller has locked the books.

    Raises:
        InvalidPrice: a price cannot be charged exactly.
        PriceRefused: another version of the model starts at the same instant.
    """
    declared = [parse_terms(model, stated) for model, stated in prices.items()]
    now = to_ms(now)
    known = await read_versions(connection)
    added = []
    for terms in declared:
        of_model = [version for version in known if version.terms.model == terms.model]
        in_effect = [version for version in of_model if version.effective_from <= now]
        if in_effect and in_effect[-1].terms == terms:
            continue
        if any(version.effective_from == now for version in of_model):
            raise PriceRefused(f"another price of {terms.model} starts at the same instant")
        added.append(await _insert(connection, terms, now, now))
    return tuple(added)


async def add_version(
    connection: AsyncConnection, terms: PriceTerms, effective_from: datetime | None, now: datetime
) -> PriceVersion:
    """Add a version of a model's price. `effective_from`: its start; None: now. The first version of a model may start
    at any time, a later one only from now on, as past costs do not change. The caller has locked the books.

    Raises:
        PriceRefused: it would start in the past, or together with another version of the model.
    """
    now = to_ms(now)
    start = now if effective_from is None else to_ms(effective_from)
    starts = {
        version.effective_from for version in await read_versions(connection) if version.terms.model == terms.model
    }
    if starts and start < now:
        raise PriceRefused(f"{terms.model} has a price already: a new one starts now or later")
    if start in starts:
        raise PriceRefused(f"another price of {terms.model} starts at the same instant")
    return await _insert(connection, terms, start, now)


async def read_versions(connection: AsyncConnection) -> tuple[PriceVersion, ...]:
    """All versions, by model and start."""
    multipliers: dict[str, dict[str, Decimal]] = {}
    columns = (PriceMultiplierRow.price_version_id, PriceMultiplierRow.tier, PriceMultiplierRow.multiplier)
    rows = (await connection.execute(_VERSIONS)).all()
    for version, tier, multiplier in (await connection.execute(select(*columns))).all():
        multipliers.setdefault(version, {})[tier] = Decimal(multiplier)
    return tuple(
        PriceVersion(id, start, PriceTerms(model, input, cached, output, MappingProxyType(multipliers.get(id, {}))))
        for id, start, model, input, cached, output in rows
    )


async def _insert(connection: AsyncConnection, terms: PriceTerms, start: datetime, now: datetime) -> PriceVersion:
    version = PriceVersion(version_id(terms.model, start), start, terms)
    row = {
        "id": version.id,
        "model": terms.model,
        "effective_from": start,
        "input": terms.input,
        "cached_input": terms.cached_input,
        "output": terms.output,
        "created_at": now,
    }
    await connection.execute(insert(PriceVersionRow).values(row))
    multipliers = [
        {"price_version_id": version.id, "tier": tier, "multiplier": f"{multiplier:f}"}
        for tier, multiplier in terms.multipliers.items()
    ]
    if multipliers:
        await connection.execute(insert(PriceMultiplierRow), multipliers)
    return version


_VERSIONS = select(
    PriceVersionRow.id,
    PriceVersionRow.effective_from,
    PriceVersionRow.model,
    PriceVersionRow.input,
    PriceVersionRow.cached_input,
    PriceVersionRow.output,
).order_by(PriceVersionRow.model, PriceVersionRow.effective_from)
