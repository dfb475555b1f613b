"""SQL tables of adapters. Rows of deleted adapters and versions stay, so that usage and invoices can name them and
their files outlive the requests that still run."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, ForeignKey, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.tenancy.tables import Base, UtcDateTime

_LIVE = text("deleted_at IS NULL")


class AdapterRow(Base):
    """An adapter. `revision`: grows with every change of any adapter, so that replicas see changes by the largest one.
    `weights`, `previous`: JSON objects from version numbers to weights. `price_multiplier`: a decimal number as text,
    as SQLite would convert it to a float."""

    __tablename__ = "adapters"
    __table_args__ = (
        Index(
            "uq_adapters_live_name",
            "tenant_id",
            "name",
            unique=True,
            sqlite_where=_LIVE,
            postgresql_where=_LIVE,
        ),
    )

    id: Mapped[str] = mapped_column(String(96), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str] = mapped_column(String(63))
    model: Mapped[str] = mapped_column(String(128))
    weights: Mapped[dict[str, int]] = mapped_column(JSON)
    previous: Mapped[dict[str, int] | None] = mapped_column(JSON(none_as_null=True))
    price_multiplier: Mapped[str] = mapped_column(String(16))
    revision: Mapped[int] = mapped_column(BigInteger, index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AdapterVersionRow(Base):
    """A version of an adapter."""

    __tablename__ = "adapter_versions"

    adapter_id: Mapped[str] = mapped_column(ForeignKey("adapters.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    digest: Mapped[str] = mapped_column(String(64), index=True)
    rank: Mapped[int]
    targets: Mapped[list[str]] = mapped_column(JSON)
    parameters: Mapped[int] = mapped_column(BigInteger)
    bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    deleted_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class AdapterUploadRow(Base):
    """An upload in progress. `files`: JSON object from a file's name to its `bytes` and `sha256`."""

    __tablename__ = "adapter_uploads"

    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(63))
    model: Mapped[str] = mapped_column(String(128))
    files: Mapped[dict[str, Any]] = mapped_column(JSON)
    activate: Mapped[bool]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class AdapterLimitsRow(Base):
    """A tenant's `AdapterLimits`."""

    __tablename__ = "adapter_limits"
    __table_args__ = (
        CheckConstraint("max_adapters >= 0", name="max_adapters"),
        CheckConstraint("max_bytes >= 0", name="max_bytes"),
    )

    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    max_adapters: Mapped[int | None]
    max_bytes: Mapped[int | None] = mapped_column(BigInteger)
