"""Tenants' policies: settings of a tenant, each a field of a record and a column of the record's table.

Those of `TenantPolicies` are part of the `Principal`, so a request reads no store for them. To add a setting, add the
field, the column and a migration; `gateway.management.operations.policies` declares it for the API, the console and the
command line.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sqlalchemy import JSON, CheckConstraint, Enum, ForeignKey, String, delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from gateway.common.model_names import MODEL_NAME
from gateway.common.party import MAX_ADDRESS_CHARS, MAX_NAME_CHARS, MAX_TAX_ID_CHARS, Party
from gateway.errors import OperatorError
from gateway.sessions.policy import SessionWindow
from gateway.tenancy.tables import Base

P = TypeVar("P")

MAX_ALIASES = 64


class InvalidPolicy(OperatorError):
    """A policy is not valid. `param`: the field at fault."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class Preference(StrEnum):
    """Trade-off between quality and cost for questions of medium difficulty. Each value is a threshold of the
    complexity score."""

    QUALITY = "quality"
    BALANCED = "balanced"
    ECONOMY = "economy"


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How a tenant's requests are routed. The default changes nothing: a named model answers, or the request fails.

    `degrade`: the small model may answer if the large one is saturated. `degrade_near_budget`: the small model may
    answer if a budget is too small for the large one's answer. `cascade_percent`: routed questions go to the small
    model first, and to the large one if the geometric mean of the answer's token probabilities is below this
    percentage; None: no cascade. `aliases`: the tenant's own names for models and pairs; a served model of the same
    name has priority.

    Raises:
        InvalidPolicy: a field is out of range.
    """

    preference: Preference = Preference.BALANCED
    degrade: bool = False
    degrade_near_budget: bool = False
    cascade_percent: int | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.cascade_percent is not None and not 1 <= self.cascade_percent <= 99:
            raise InvalidPolicy("cascade_percent", "cascade_percent must be from 1 to 99")
        if len(self.aliases) > MAX_ALIASES:
            raise InvalidPolicy("aliases", f"a tenant has at most {MAX_ALIASES} aliases")
        for name in (*self.aliases, *self.aliases.values()):
            if not re.fullmatch(MODEL_NAME, name):
                raise InvalidPolicy("aliases", "an alias and its target must be valid model names")


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """How a tenant's stored conversations are kept. `window`: the handling of turns that exceed the context window;
    None: as the setting `session_window`."""

    window: SessionWindow | None = None


@dataclass(frozen=True, slots=True)
class TenantPolicies:
    """All policies of a tenant, each at its default unless the tenant has its own."""

    routing: RoutingPolicy = RoutingPolicy()
    session: SessionPolicy = SessionPolicy()


NO_POLICIES = TenantPolicies()


def _word(words: type[StrEnum]) -> Enum:
    """The column type of a word, stored as text."""
    return Enum(words, native_enum=False, create_constraint=False, length=16, values_callable=list)


class RoutingPolicyRow(Base):
    """A tenant's `RoutingPolicy`."""

    __tablename__ = "routing_policies"
    __table_args__ = (CheckConstraint("preference IN ('quality', 'balanced', 'economy')", name="preference"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    preference: Mapped[Preference] = mapped_column(_word(Preference))
    degrade: Mapped[bool]
    degrade_near_budget: Mapped[bool]
    cascade_percent: Mapped[int | None]
    aliases: Mapped[dict[str, str]] = mapped_column(JSON)


class SessionPolicyRow(Base):
    """A tenant's `SessionPolicy`."""

    __tablename__ = "session_windows"
    __table_args__ = (CheckConstraint("policy IN ('sliding', 'summary')", name="policy"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    window: Mapped[SessionWindow] = mapped_column("policy", _word(SessionWindow))


class BillToRow(Base):
    """The `Party` to which a tenant's invoices are billed."""

    __tablename__ = "bill_to"

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    name: Mapped[str] = mapped_column(String(MAX_NAME_CHARS))
    address: Mapped[str] = mapped_column(String(MAX_ADDRESS_CHARS))
    tax_id: Mapped[str] = mapped_column(String(MAX_TAX_ID_CHARS))


@dataclass(frozen=True, slots=True)
class PolicyTable(Generic[P]):
    """A kind of policy in SQL. Each field of `record` is the column of the same name in `row`. A tenant whose policy
    is the default has no row."""

    record: type[P]
    row: type[Base]

    async def read_all(self, connection: AsyncConnection, tenant_ids: Collection[str]) -> Mapping[str, P]:
        """The policies that differ from the default, by tenant id."""
        columns = [getattr(self.row, name) for name in ("tenant_id", *self._names())]
        rows = await connection.execute(select(*columns).where(columns[0].in_(tuple(tenant_ids))))
        return {tenant_id: self.record(*values) for tenant_id, *values in rows}

    async def read(self, connection: AsyncConnection, tenant_id: str) -> P:
        """A tenant's policy, or the default."""
        return (await self.read_all(connection, [tenant_id])).get(tenant_id, self.record())

    async def write(self, connection: AsyncConnection, tenant_id: str, policy: P) -> None:
        """Replace a tenant's policy. The caller holds a lock on the tenant."""
        await connection.execute(delete(self.row).where(self.row.__table__.c.tenant_id == tenant_id))
        if policy != self.record():
            values: dict[str, Any] = {name: getattr(policy, name) for name in self._names()}
            await connection.execute(insert(self.row).values(tenant_id=tenant_id, **values))

    def _names(self) -> tuple[str, ...]:
        return tuple(each.name for each in fields(self.record))  # type: ignore[arg-type]  # a dataclass


POLICY_TABLES: Mapping[str, PolicyTable[Any]] = {
    "routing": PolicyTable(RoutingPolicy, RoutingPolicyRow),
    "session": PolicyTable(SessionPolicy, SessionPolicyRow),
}
"""By the field of `TenantPolicies`."""
BILL_TO = PolicyTable(Party, BillToRow)
"""Of invoices alone, so no `Principal` has it."""


async def read_policies(connection: AsyncConnection, tenant_ids: Collection[str]) -> Mapping[str, TenantPolicies]:
    """Policies of the tenants that have any of their own, by tenant id."""
    found: dict[str, dict[str, Any]] = {}
    for name, table in POLICY_TABLES.items():
        for tenant_id, policy in (await table.read_all(connection, tenant_ids)).items():
            found.setdefault(tenant_id, {})[name] = policy
    return {tenant_id: TenantPolicies(**policies) for tenant_id, policies in found.items()}
