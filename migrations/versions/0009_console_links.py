"""Links that log in to the console once

Revision 0009, after 0008.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "console_links",
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("key_id", sa.String(12), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_console_links")),
        sa.ForeignKeyConstraint(["key_id"], ["admin_keys.public_id"], name=op.f("fk_console_links_key_id_admin_keys")),
    )
    op.create_index(op.f("ix_console_links_expires_at"), "console_links", ["expires_at"])


def downgrade() -> None:
    op.drop_table("console_links")
