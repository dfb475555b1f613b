"""Routing policies of tenants

Revision 0006, after 0005.
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "routing_policies",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("preference", sa.String(16), nullable=False),
        sa.Column("degrade", sa.Boolean(), nullable=False),
        sa.Column("degrade_near_budget", sa.Boolean(), nullable=False),
        sa.Column("cascade_percent", sa.Integer(), nullable=True),
        sa.Column("aliases", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_routing_policies")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_routing_policies_tenant_id_tenants")),
        sa.CheckConstraint(
            "preference IN ('quality', 'balanced', 'economy')", name=op.f("ck_routing_policies_preference")
        ),
    )


def downgrade() -> None:
    op.drop_table("routing_policies")
