"""Tenants' adapters: names, versions, uploads and limits; adapters on invoice lines

Revision 0011, after 0010.

Lines of former invoices are of no adapter, at the plain price.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_LIVE = sa.text("deleted_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "adapters",
        sa.Column("id", sa.String(96), nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("weights", sa.JSON(), nullable=False),
        sa.Column("previous", sa.JSON(), nullable=True),
        sa.Column("price_multiplier", sa.String(16), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapters")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapters_tenant_id_tenants")),
    )
    op.create_index(op.f("ix_adapters_revision"), "adapters", ["revision"])
    op.create_index(
        "uq_adapters_live_name",
        "adapters",
        ["tenant_id", "name"],
        unique=True,
        sqlite_where=_LIVE,
        postgresql_where=_LIVE,
    )
    op.create_table(
        "adapter_versions",
        sa.Column("adapter_id", sa.String(96), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("targets", sa.JSON(), nullable=False),
        sa.Column("parameters", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("adapter_id", "number", name=op.f("pk_adapter_versions")),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_adapter_versions_adapter_id_adapters")),
    )
    op.create_index(op.f("ix_adapter_versions_digest"), "adapter_versions", ["digest"])
    op.create_table(
        "adapter_uploads",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("model", sa.String(128), nullable=False),
        sa.Column("files", sa.JSON(), nullable=False),
        sa.Column("activate", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_adapter_uploads")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapter_uploads_tenant_id_tenants")),
    )
    op.create_index(op.f("ix_adapter_uploads_tenant_id"), "adapter_uploads", ["tenant_id"])
    op.create_table(
        "adapter_limits",
        sa.Column("tenant_id", sa.String(36), nullable=False),
        sa.Column("max_adapters", sa.Integer(), nullable=True),
        sa.Column("max_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_adapter_limits")),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_adapter_limits_tenant_id_tenants")),
        sa.CheckConstraint("max_adapters >= 0", name=op.f("ck_adapter_limits_max_adapters")),
        sa.CheckConstraint("max_bytes >= 0", name=op.f("ck_adapter_limits_max_bytes")),
    )
    op.add_column("invoice_lines", sa.Column("adapter_id", sa.String(96), nullable=False, server_default=""))
    op.add_column("invoice_lines", sa.Column("price_multiplier", sa.String(16), nullable=False, server_default="1"))


def downgrade() -> None:
    for name in ("price_multiplier", "adapter_id"):
        op.drop_column("invoice_lines", name)
    for name in ("adapter_limits", "adapter_uploads", "adapter_versions", "adapters"):
        op.drop_table(name)
