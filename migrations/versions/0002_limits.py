"""Limits of keys, tenants, and models of tenants

Revision 0002, after 0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "limits",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("scope_id", sa.String(128), nullable=False),
        sa.Column("requests_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_minute", sa.BigInteger(), nullable=True),
        sa.Column("tokens_per_day", sa.BigInteger(), nullable=True),
        sa.Column("concurrent", sa.BigInteger(), nullable=True),
        sa.Column("context_tokens", sa.BigInteger(), nullable=True),
        sa.Column("nanodollars_per_month", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", "kind", "scope_id", name=op.f("pk_limits")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_limits_tenant_id_tenants")),
        sa.CheckConstraint("kind IN ('key', 'tenant', 'model')", name=op.f("ck_limits_kind")),
    )


def downgrade() -> None:
    op.drop_table("limits")
