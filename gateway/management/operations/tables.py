"""The SQL tables of the audit log and of requests that may be repeated."""

from datetime import datetime

from sqlalchemy import BigInteger, Index, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from gateway.tenancy.tables import Base, UtcDateTime

MAX_ACTOR_CHARS = 32


class AuditRow(Base):
    """One change. `sequence` counts 1, 2, 3 without a gap; `digest` chains each row to the one before. `before` and
    `after` are JSON without secrets. Triggers refuse UPDATE and DELETE."""

    __tablename__ = "audit_log"
    __table_args__ = (
        Index("ix_audit_log_tenant_id", "tenant_id", "sequence"),
        Index("ix_audit_log_resource", "resource", "resource_id", "sequence"),
    )

    sequence: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    at: Mapped[datetime] = mapped_column(UtcDateTime)
    actor: Mapped[str] = mapped_column(String(MAX_ACTOR_CHARS))
    request_id: Mapped[str] = mapped_column(String(128))
    action: Mapped[str] = mapped_column(String(64))
    resource: Mapped[str] = mapped_column(String(32))
    resource_id: Mapped[str] = mapped_column(String(128))
    tenant_id: Mapped[str | None] = mapped_column(String(36))
    before: Mapped[str | None] = mapped_column(Text)
    after: Mapped[str | None] = mapped_column(Text)
    digest: Mapped[bytes] = mapped_column(LargeBinary(32))


class IdempotentRow(Base):
    """The answer to a request that an administrator's key may send again under the same `Idempotency-Key`. It holds no
    secret."""

    __tablename__ = "idempotent_requests"

    actor: Mapped[str] = mapped_column(String(32), primary_key=True)
    key: Mapped[str] = mapped_column(String(255), primary_key=True)
    fingerprint: Mapped[bytes] = mapped_column(LargeBinary(32))
    status: Mapped[int]
    answer: Mapped[str] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
