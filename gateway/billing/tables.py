"""SQL tables of prices, invoices and credit. Rows are append-only: triggers of the migration refuse changes and
deletions. Money is integer nanodollars; tokens and events are counts."""

from datetime import date, datetime

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Date,
    ForeignKey,
    ForeignKeyConstraint,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from gateway.tenancy.tables import Base, UtcDateTime

_PRICE_ID = String(160)
_NUMBER = String(24)
_MONTH = String(7)


class PriceVersionRow(Base):
    """A price version: nanodollars a token, before the multiplier of the class."""

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
    """The multiplier of a class. `multiplier`: a decimal number as text, as SQLite would convert it to a float."""

    __tablename__ = "price_multipliers"

    price_version_id: Mapped[str] = mapped_column(ForeignKey("price_versions.id"), primary_key=True)
    tier: Mapped[str] = mapped_column(String(64), primary_key=True)
    multiplier: Mapped[str] = mapped_column(String(16))


class InvoiceRow(Base):
    """A final invoice. `sequence`: 1, 2, 3, ... within a month without a gap; `number` contains both. `issuer`,
    `bill_to`: the fields of a `Party`; null, and no `due_date`: finalised before invoices had them. `tax_rate`:
    thousandths of a percent."""

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
    issuer: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    bill_to: Mapped[dict[str, str] | None] = mapped_column(JSON(none_as_null=True))
    due_date: Mapped[date | None] = mapped_column(Date)
    tax_rate: Mapped[int] = mapped_column(server_default="0")


class InvoiceSettlementRow(Base):
    """The end of an open invoice. `status`: `paid` or `void`. `note`: reference of the payment, or the reason."""

    __tablename__ = "invoice_settlements"
    __table_args__ = (CheckConstraint("status IN ('paid', 'void')", name="status"),)

    invoice_number: Mapped[str] = mapped_column(ForeignKey("invoices.number"), primary_key=True)
    status: Mapped[str] = mapped_column(String(8))
    amount_cents: Mapped[int] = mapped_column(BigInteger)
    note: Mapped[str] = mapped_column(String(500))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class InvoiceLineRow(Base):
    """A line of an invoice. `usage_month`: month of the events, the invoice's or, for late events, an earlier one.
    `adapter_id`: empty: none. `price_multiplier`: of the adapter, on `price_version`; a decimal number as text, as
    SQLite would convert it to a float."""

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
    adapter_id: Mapped[str] = mapped_column(String(96), server_default="")
    price_multiplier: Mapped[str] = mapped_column(String(16), server_default="1")
    estimated_events: Mapped[int] = mapped_column(BigInteger, server_default="0")


class CreditNoteRow(Base):
    """An amount taken back from an invoice, or from one of its lines. `month`: month in which the note was made."""

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
    """An entry of prepaid credit: a positive grant, or a negative correction."""

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
