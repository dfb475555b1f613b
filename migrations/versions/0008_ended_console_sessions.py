"""Sessions of the console that were ended by hand

Revision 0008, after 0007.
"""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ended_console_sessions",
        sa.Column("id", sa.String(22), nullable=False),
        sa.Column("over_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ended_console_sessions")),
    )
    op.create_index(op.f("ix_ended_console_sessions_over_at"), "ended_console_sessions", ["over_at"])


def downgrade() -> None:
    op.drop_table("ended_console_sessions")
