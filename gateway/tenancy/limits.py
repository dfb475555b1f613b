"""Limits of tenants in the SQL store.

Requests do not read them from here: a tenant's limits are read together with its keys and are part of the `Principal`.
They are thus as fresh as a revocation, through the same cache and the same outages.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.tenancy.database import answering
from gateway.tenancy.errors import InvalidLimit, UnknownKey
from gateway.tenancy.tables import KeyRow, LimitRow, TenantRow

MAX_LIMIT = 2**53 - 1
"""Upper bound that Redis' Lua counts exactly; 9 million dollars a month."""
MAX_MODEL_CHARS = 128


class ScopeKind(StrEnum):
    """The object that a limit applies to."""

    KEY = "key"
    TENANT = "tenant"
    MODEL = "model"
    """One model, as used by one tenant."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one scope. None: not stated, so it does not apply.

    `context_tokens` bounds prompt and answer of one request together. Months are calendar months, UTC.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent: int | None = None
    context_tokens: int | None = None
    nanodollars_per_month: int | None = None


LIMIT_NAMES = tuple(field.name for field in fields(Limits))


@dataclass(frozen=True, slots=True)
class ScopedLimits:
    """Limits with their scope. `scope_id`: a key's public id, a model's served name, or "" for the tenant."""

    kind: ScopeKind
    scope_id: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A line of `turnpike limit list`."""

    tenant_name: str
    kind: ScopeKind
    scope_id: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    tokens_per_day: int | None
    concurrent: int | None
    context_tokens: int | None
    nanodollars_per_month: int | None


class LimitTable:
    """Reads limits for the command line. Every method raises `StoreUnavailable` if the database does not answer."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def list_limits(self) -> tuple[LimitRecord, ...]:
        """All stated limits, by tenant."""
        query = _RECORDS.order_by(TenantRow.name, LimitRow.kind, LimitRow.scope_id)
        with answering():
            async with self._database.connect() as connection:
                rows = (await connection.execute(query)).all()
        return tuple(LimitRecord(row[0], ScopeKind(row[1]), *row[2:]) for row in rows)


@dataclass(frozen=True, slots=True)
class LimitScope:
    """A validated scope of limits, made by `limit_scope`."""

    kind: ScopeKind
    id: str


async def limit_scope(connection: AsyncConnection, tenant_id: str, kind: ScopeKind, scope_id: str) -> LimitScope:
    """The scope of limits of this tenant, key or model. All keys of a chain of rotations share one scope.

    Raises:
        InvalidLimit: the model's name is not valid.
        UnknownKey: the tenant has no such key.
    """
    match kind:
        case ScopeKind.TENANT:
            return LimitScope(kind, "")
        case ScopeKind.MODEL:
            if not (0 < len(scope_id) <= MAX_MODEL_CHARS and scope_id.isprintable()):
                raise InvalidLimit(f"a model's name is 1 to {MAX_MODEL_CHARS} printable characters")
            return LimitScope(kind, scope_id)
        case ScopeKind.KEY:
            query = select(KeyRow.lineage).where(KeyRow.public_id == scope_id, KeyRow.tenant_id == tenant_id)
            lineage = await connection.scalar(query)
            if lineage is None:
                raise UnknownKey("the tenant has no key with that public id")
            return LimitScope(kind, lineage)


async def write_limits(
    connection: AsyncConnection, tenant_id: str, scope: LimitScope, changes: Mapping[str, int | None]
) -> None:
    """Change some limits of a scope. The changes have passed `check_limits`.

    Raises:
        IntegrityError: another transaction has stated the scope's first limits.
    """
    row = {"tenant_id": tenant_id, "kind": scope.kind.value, "scope_id": scope.id}
    here = [getattr(LimitRow, name) == value for name, value in row.items()]
    changed = await connection.execute(update(LimitRow).where(*here).values(**row, **changes))
    if not changed.rowcount:
        await connection.execute(insert(LimitRow).values(**row, **changes))


async def read_limits(
    connection: AsyncConnection, tenant_ids: Iterable[str]
) -> Mapping[str, Mapping[ScopeKind, Mapping[str, Limits]]]:
    """Limits of tenants, by tenant id, kind and scope id."""
    query = select(LimitRow.tenant_id, LimitRow.kind, LimitRow.scope_id, *_LIMIT_COLUMNS).where(
        LimitRow.tenant_id.in_(tuple(tenant_ids))
    )
    found: dict[str, dict[ScopeKind, dict[str, Limits]]] = {}
    for tenant_id, kind, scope_id, *limits in (await connection.execute(query)).all():
        found.setdefault(tenant_id, {}).setdefault(ScopeKind(kind), {})[scope_id] = Limits(*limits)
    return found


def limits_of_key(stated: Mapping[ScopeKind, Mapping[str, Limits]], lineage: str) -> tuple[ScopedLimits, ...]:
    """The part of a tenant's limits that applies to keys of one lineage: without other keys' limits."""
    return tuple(
        ScopedLimits(kind, scope_id, limits)
        for kind, scopes in stated.items()
        for scope_id, limits in scopes.items()
        if kind is not ScopeKind.KEY or scope_id == lineage
    )


def check_limits(changes: Mapping[str, int | None]) -> None:
    """Check names and ranges of limits.

    Raises:
        InvalidLimit: a name is unknown, or a number is out of range.
    """
    for name, limit in changes.items():
        if name not in LIMIT_NAMES:
            raise InvalidLimit(f"there is no limit named {name}")
        if limit is not None and not 0 <= limit <= MAX_LIMIT:
            raise InvalidLimit(f"{name} must be from 0 to {MAX_LIMIT}")


_LIMIT_COLUMNS = tuple(getattr(LimitRow, name) for name in LIMIT_NAMES)
_RECORDS = select(TenantRow.name, LimitRow.kind, LimitRow.scope_id, *_LIMIT_COLUMNS).join(
    TenantRow, TenantRow.id == LimitRow.tenant_id
)
