"""The SQL tables of prices, invoices and credit. Rows are added and never changed or deleted: the migration that makes
the tables has triggers that refuse it. Money is integer nanodollars, tokens and events are counts."""

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, ForeignKeyConstraint, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from gateway.tenancy.tables import Base, UtcDateTime

_PRICE_ID = String(160)
_NUMBER = String(24)
_MONTH = String(7)


class PriceVersionRow(Base):
    """Nanodollars of a token, before the multiplier of its class."""

    __tablename__ = "price_versions"
    __table_args__ = (
        UniqueConstraint("model", "effective_from"),
        CheckConstraint("0 <= cached_input AND cached_input <= input AND 0 <= output", name="in_range"),
    )

    id: Mapped[str] = mapped_column(_PRICE_ID, primary_key=True)
    model: Mapped[str] = mapped_column(String(128))
    effective_from: Mapped[datetime] = mapped_column(UtcDateTime)
    input: Mapped[int] = mapped_column(BigInteger)
    cached_input: Mapped[int] = mapped_column(BigInteger)
    output: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class PriceMultiplierRow(Base):
    """`multiplier` is a decimal number as text: SQLite would make a float of it."""

    __tablename__ = "price_multipliers"

    price_version_id: Mapped[str] = mapped_column(ForeignKey("price_versions.id"), primary_key=True)
    tier: Mapped[str] = mapped_column(String(64), primary_key=True)
    multiplier: Mapped[str] = mapped_column(String(16))


class InvoiceRow(Base):
    """A final invoice. `sequence` counts 1, 2, 3, ... within a month without a gap; `number` shows both."""

    __tablename__ = "invoices"
    __table_args__ = (UniqueConstraint("tenant_id", "month"), UniqueConstraint("month", "sequence"))

    number: Mapped[str] = mapped_column(_NUMBER, primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    tenant_name: Mapped[str] = mapped_column(String(64))
    month: Mapped[str] = mapped_column(_MONTH)
    sequence: Mapped[int]
    total_nanodollars: Mapped[int] = mapped_column(BigInteger)
    events: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(32))
    finalised_at: Mapped[datetime] = mapped_column(UtcDateTime)


class InvoiceLineRow(Base):
    """`usage_month` is that of the events: the invoice's, or an earlier one's, whose events came late."""

    __tablename__ = "invoice_lines"

    invoice_number: Mapped[str] = mapped_column(ForeignKey("invoices.number"), primary_key=True)
    line: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    usage_month: Mapped[str] = mapped_column(_MONTH)
    served_model: Mapped[str] = mapped_column(String(128))
    tier_served: Mapped[str] = mapped_column(String(64))
    price_version: Mapped[str] = mapped_column(ForeignKey("price_versions.id"))
    input_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    input_price: Mapped[int] = mapped_column(BigInteger)
    cached_price: Mapped[int] = mapped_column(BigInteger)
    output_price: Mapped[int] = mapped_column(BigInteger)
    events: Mapped[int] = mapped_column(BigInteger)
    amount_nanodollars: Mapped[int] = mapped_column(BigInteger)
    digest: Mapped[str] = mapped_column(String(32))


class CreditNoteRow(Base):
    """What is taken back of an invoice, or of one line of it. `month` is that of its making."""

    __tablename__ = "credit_notes"
    __table_args__ = (
        UniqueConstraint("month", "sequence"),
        ForeignKeyConstraint(["invoice_number", "line"], ["invoice_lines.invoice_number", "invoice_lines.line"]),
        CheckConstraint("amount_nanodollars > 0", name="positive"),
    )

    number: Mapped[str] = mapped_column(_NUMBER, primary_key=True)
    invoice_number: Mapped[str] = mapped_column(ForeignKey("invoices.number"), index=True)
    line: Mapped[int | None]
    month: Mapped[str] = mapped_column(_MONTH)
    sequence: Mapped[int]
    amount_nanodollars: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str] = mapped_column(String(500))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class CreditEntryRow(Base):
    """What a tenant has paid in advance: a positive grant, or a negative correction."""

    __tablename__ = "credit_entries"
    __table_args__ = (
        UniqueConstraint("tenant_id", "idempotency_key"),
        CheckConstraint("amount_nanodollars != 0", name="not_nothing"),
    )

    id: Mapped[str] = mapped_column(String(36), primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    amount_nanodollars: Mapped[int] = mapped_column(BigInteger)
    reason: Mapped[str] = mapped_column(String(500))
    idempotency_key: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
