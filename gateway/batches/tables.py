"""The SQL table of batches. The progress of their lines is in the results on the disk; the counts here follow it."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.tenancy.tables import Base, UtcDateTime


class BatchRow(Base):
    """A batch. `errors`: a list of objects. `usage`: fields of `BatchUsage`. `owner`: the gateway process that runs it,
    until `lease_until`; null: none does. `labels`: the client's metadata."""

    __tablename__ = "batches"
    __table_args__ = (Index("ix_batches_tenant_id_created_at", "tenant_id", "created_at"),)

    id: Mapped[str] = mapped_column(String(40), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    key_id: Mapped[str] = mapped_column(String(12))
    endpoint: Mapped[str] = mapped_column(String(64))
    completion_window: Mapped[str] = mapped_column(String(8))
    status: Mapped[str] = mapped_column(String(16), index=True)
    model: Mapped[str | None] = mapped_column(String(128))
    input_file_id: Mapped[str] = mapped_column(String(40))
    output_file_id: Mapped[str | None] = mapped_column(String(40))
    error_file_id: Mapped[str | None] = mapped_column(String(40))
    errors: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    labels: Mapped[dict[str, str] | None] = mapped_column("metadata", JSON(none_as_null=True))
    output_life_s: Mapped[int]
    total: Mapped[int]
    completed: Mapped[int]
    failed: Mapped[int]
    usage: Mapped[dict[str, int]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    in_progress_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    finalizing_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    expired_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancelling_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    cancelled_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    owner: Mapped[str | None] = mapped_column(String(64))
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
