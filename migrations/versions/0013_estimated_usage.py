"""Requests with estimated tokens on invoice lines

Revision 0013, after 0012.

Lines of former invoices do not say.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("invoice_lines", sa.Column("estimated_events", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("invoice_lines", "estimated_events")
