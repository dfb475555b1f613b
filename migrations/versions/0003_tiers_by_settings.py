"""A tenant's tier may be any class of service of the settings

Revision 0003, after 0002.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _tenants(*constraints: sa.Constraint) -> sa.Table:
    """The table as it stands, for SQLite, which is rebuilt from it: checks cannot be read back from the database."""
    return sa.Table(
        "tenants",
        sa.MetaData(),
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("tier", sa.String(16), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenants")),
        sa.UniqueConstraint("name", name=op.f("uq_tenants_name")),
        *constraints,
    )


def upgrade() -> None:
    check = sa.CheckConstraint("tier IN ('premium', 'standard')", name=op.f("ck_tenants_tier"))
    with op.batch_alter_table("tenants", copy_from=_tenants(check)) as tenants:
        tenants.drop_constraint(op.f("ck_tenants_tier"), type_="check")


def downgrade() -> None:
    """Fails, with nothing changed, where a tenant has another tier than these two."""
    with op.batch_alter_table("tenants", copy_from=_tenants()) as tenants:
        tenants.create_check_constraint(op.f("ck_tenants_tier"), "tier IN ('premium', 'standard')")
