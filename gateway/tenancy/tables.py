"""SQL tables of tenants, their keys and limits, and of administrators' keys. `migrations/` creates them; a
test compares the two."""

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    DateTime,
    Dialect,
    ForeignKey,
    LargeBinary,
    MetaData,
    String,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

# Without names, SQLite's batch migrations could not address a constraint.
NAMING_CONVENTION = {
    "ix": "ix_%(column_0_label)s",
    "uq": "uq_%(table_name)s_%(column_0_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """An instant, stored in UTC. SQLite drops the zone, so it is restored on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The instant in UTC, for the database."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The instant from the database, with its zone."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Base class of all tables."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


class TenantRow(Base):
    """A tenant."""

    __tablename__ = "tenants"

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    tier: Mapped[str] = mapped_column(String(16))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    disabled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class KeyRow(Base):
    """A tenant's key. `digest`: HMAC-SHA256 of the whole key under the pepper with id `pepper_id`.

    `scopes`, `models`: what the key may do; NULL allows all. `lineage`: public id of the first key of a chain of
    rotations. It owns the limits and their windows, so a rotation resets nothing.
    """

    __tablename__ = "api_keys"

    public_id: Mapped[str] = mapped_column(String(12), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(128))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    pepper_id: Mapped[str] = mapped_column(String(16))
    last_four: Mapped[str] = mapped_column(String(4))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    rotated_to: Mapped[str | None] = mapped_column(String(12))
    lineage: Mapped[str] = mapped_column(String(12))
    scopes: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    models: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))


class AdminKeyRow(Base):
    """An administrator's key. `digest`: as for a tenant's key."""

    __tablename__ = "admin_keys"
    __table_args__ = (CheckConstraint("role IN ('admin', 'billing', 'viewer')", name="role"),)

    public_id: Mapped[str] = mapped_column(String(12), primary_key=True)
    name: Mapped[str] = mapped_column(String(128))
    role: Mapped[str] = mapped_column(String(16))
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))
    pepper_id: Mapped[str] = mapped_column(String(16))
    last_four: Mapped[str] = mapped_column(String(4))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    revoked_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    last_used_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class LimitRow(Base):
    """Limits of one scope; `gateway.tenancy.limits.Limits` defines the numbers. `scope_id`: a key's public id, a
    model's name, or "" for the tenant."""

    __tablename__ = "limits"
    __table_args__ = (CheckConstraint("kind IN ('key', 'tenant', 'model')", name="kind"),)

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(8), primary_key=True)
    scope_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    requests_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_minute: Mapped[int | None] = mapped_column(BigInteger)
    tokens_per_day: Mapped[int | None] = mapped_column(BigInteger)
    concurrent: Mapped[int | None] = mapped_column(BigInteger)
    context_tokens: Mapped[int | None] = mapped_column(BigInteger)
    nanodollars_per_month: Mapped[int | None] = mapped_column(BigInteger)
