"""Issuer, bill-to, due date and tax of invoices; their settlement; tenants' bill-to

Revision 0010, after 0009.

Invoices that are final already have none of the terms, and no tax; their rows stay as they are.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_REFUSE_SQLITE = """
CREATE TRIGGER invoice_settlements_refuses_{event} BEFORE {event} ON invoice_settlements
BEGIN SELECT RAISE(ABORT, 'the books are only added to'); END
"""
_REFUSE_POSTGRESQL = """
CREATE TRIGGER invoice_settlements_refuses_changes BEFORE UPDATE OR DELETE OR TRUNCATE ON invoice_settlements
FOR EACH STATEMENT EXECUTE FUNCTION books_are_only_added_to()
"""
_TERMS = ("issuer", "bill_to", "due_date", "tax_rate")


def upgrade() -> None:
    op.add_column("invoices", sa.Column("issuer", sa.JSON(), nullable=True))
    op.add_column("invoices", sa.Column("bill_to", sa.JSON(), nullable=True))
    op.add_column("invoices", sa.Column("due_date", sa.Date(), nullable=True))
    op.add_column("invoices", sa.Column("tax_rate", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "invoice_settlements",
        sa.Column("invoice_number", sa.String(24), nullable=False),
        sa.Column("status", sa.String(8), nullable=False),
        sa.Column("amount_cents", sa.BigInteger(), nullable=False),
        sa.Column("note", sa.String(500), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("invoice_number", name=op.f("pk_invoice_settlements")),
        sa.ForeignKeyConstraint(
            ["invoice_number"], ["invoices.number"], name=op.f("fk_invoice_settlements_invoice_number_invoices")
        ),
        sa.CheckConstraint("status IN ('paid', 'void')", name=op.f("ck_invoice_settlements_status")),
    )
    op.create_table(
        "bill_to",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("address", sa.String(500), nullable=False),
        sa.Column("tax_id", sa.String(64), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_bill_to")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_bill_to_tenant_id_tenants")),
    )
    if op.get_bind().dialect.name == "sqlite":
        for event in ("update", "delete"):
            op.execute(_REFUSE_SQLITE.format(event=event))
    else:
        op.execute(_REFUSE_POSTGRESQL)


def downgrade() -> None:
    op.drop_table("bill_to")
    op.drop_table("invoice_settlements")
    for name in reversed(_TERMS):
        op.drop_column("invoices", name)
