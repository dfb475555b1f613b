"""Tenants' policies for the oldest turns of sessions

Revision 0007, after 0006.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "session_windows",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("policy", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_session_windows")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_session_windows_tenant_id_tenants")),
        sa.CheckConstraint("policy IN ('sliding', 'summary')", name=op.f("ck_session_windows_policy")),
    )


def downgrade() -> None:
    op.drop_table("session_windows")
