"""Prices, invoices, credit notes and credit: rows that are only ever added

Revision 0004, after 0003.

Triggers refuse every change of a row. A later revision that rebuilds one of these tables on SQLite must make its
triggers again.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLES = (
    "price_versions",
    "price_multipliers",
    "invoices",
    "invoice_lines",
    "credit_notes",
    "credit_entries",
)
_REFUSE_SQLITE = """
CREATE TRIGGER {table}_refuses_{event} BEFORE {event} ON {table}
BEGIN SELECT RAISE(ABORT, 'the books are only added to'); END
"""
_REFUSE_POSTGRESQL = """
CREATE FUNCTION books_are_only_added_to() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the books are only added to'; END $$
"""
_TRIGGER_POSTGRESQL = """
CREATE TRIGGER {table}_refuses_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION books_are_only_added_to()
"""


def upgrade() -> None:
    _make_prices()
    _make_invoices()
    _make_credit()
    if op.get_bind().dialect.name == "sqlite":
        for table in _TABLES:
            for event in ("update", "delete"):
                op.execute(_REFUSE_SQLITE.format(table=table, event=event))
    else:
        op.execute(_REFUSE_POSTGRESQL)
        for table in _TABLES:
            op.execute(_TRIGGER_POSTGRESQL.format(table=table))


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION books_are_only_added_to")


def _make_prices() -> None:
    op.create_table(
        "price_versions",
        sa.Column("id", sa.String(160), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("effective_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("input", sa.BigInteger(), nullable=False),
        sa.Column("cached_input", sa.BigInteger(), nullable=False),
        sa.Column("output", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_price_versions")),
        sa.UniqueConstraint("model", "effective_from", name=op.f("uq_price_versions_model")),
        sa.CheckConstraint(
            "0 <= cached_input AND cached_input <= input AND 0 <= output", name=op.f("ck_price_versions_in_range")
        ),
    )
    op.create_table(
        "price_multipliers",
        sa.Column("price_version_id", sa.String(160), nullable=False),
        sa.Column("tier", sa.String(64), nullable=False),
        sa.Column("multiplier", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("price_version_id", "tier", name=op.f("pk_price_multipliers")),
        sa.ForeignKeyConstraint(
            ["price_version_id"],
            ["price_versions.id"],
            name=op.f("fk_price_multipliers_price_version_id_price_versions"),
        ),
    )


def _make_invoices() -> None:
    op.create_table(
        "invoices",
        sa.Column("number", sa.String(24), nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("tenant_name", sa.String(64), nullable=False),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("total_nanodollars", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(32), nullable=False),
        sa.Column("finalised_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_invoices")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_invoices_tenant_id_tenants")),
        sa.UniqueConstraint("tenant_id", "month", name=op.f("uq_invoices_tenant_id")),
        sa.UniqueConstraint("month", "sequence", name=op.f("uq_invoices_month")),
    )
    op.create_table(
        "invoice_lines",
        sa.Column("invoice_number", sa.String(24), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("usage_month", sa.String(7), nullable=False),
        sa.Column("served_model", sa.String(128), nullable=False),
        sa.Column("tier_served", sa.String(64), nullable=False),
        sa.Column("price_version", sa.String(160), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("input_price", sa.BigInteger(), nullable=False),
        sa.Column("cached_price", sa.BigInteger(), nullable=False),
        sa.Column("output_price", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("amount_nanodollars", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(32), nullable=False),
        sa.PrimaryKeyConstraint("invoice_number", "line", name=op.f("pk_invoice_lines")),
        sa.ForeignKeyConstraint(
            ["invoice_number"], ["invoices.number"], name=op.f("fk_invoice_lines_invoice_number_invoices")
        ),
        sa.ForeignKeyConstraint(
            ["price_version"], ["price_versions.id"], name=op.f("fk_invoice_lines_price_version_price_versions")
        ),
    )
    op.create_table(
        "credit_notes",
        sa.Column("number", sa.String(24), nullable=False),
        sa.Column("invoice_number", sa.String(24), nullable=False),
        sa.Column("line", sa.Integer(), nullable=True),
        sa.Column("month", sa.String(7), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("amount_nanodollars", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_credit_notes")),
        sa.ForeignKeyConstraint(
            ["invoice_number"], ["invoices.number"], name=op.f("fk_credit_notes_invoice_number_invoices")
        ),
        sa.ForeignKeyConstraint(
            ["invoice_number", "line"],
            ["invoice_lines.invoice_number", "invoice_lines.line"],
            name=op.f("fk_credit_notes_invoice_number_invoice_lines"),
        ),
        sa.UniqueConstraint("month", "sequence", name=op.f("uq_credit_notes_month")),
        sa.CheckConstraint("amount_nanodollars > 0", name=op.f("ck_credit_notes_positive")),
    )
    op.create_index(op.f("ix_credit_notes_invoice_number"), "credit_notes", ["invoice_number"])


def _make_credit() -> None:
    op.create_table(
        "credit_entries",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("amount_nanodollars", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.Column("idempotency_key", sa.String(128), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_credit_entries")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_credit_entries_tenant_id_tenants")),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("uq_credit_entries_tenant_id")),
        sa.CheckConstraint("amount_nanodollars != 0", name=op.f("ck_credit_entries_not_nothing")),
    )
