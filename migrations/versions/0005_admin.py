"""Administrators' keys, the audit log, answers to repeated requests; rotation and grants of tenants' keys

Revision 0005, after 0004.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_REFUSE_SQLITE = """
CREATE TRIGGER audit_log_refuses_{event} BEFORE {event} ON audit_log
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END
"""
_REFUSE_POSTGRESQL = """
CREATE FUNCTION audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$
"""
_TRIGGER_POSTGRESQL = """
CREATE TRIGGER audit_log_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_log
FOR EACH STATEMENT EXECUTE FUNCTION audit_log_is_append_only()
"""


def upgrade() -> None:
    with op.batch_alter_table("api_keys") as keys:
        keys.add_column(sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
        keys.add_column(sa.Column("rotated_to", sa.String(12), nullable=True))
        keys.add_column(sa.Column("lineage", sa.String(12), nullable=True))
        keys.add_column(sa.Column("scopes", sa.JSON(), nullable=True))
        keys.add_column(sa.Column("models", sa.JSON(), nullable=True))
    op.execute("UPDATE api_keys SET lineage = public_id")
    with op.batch_alter_table("api_keys") as keys:
        keys.alter_column("lineage", existing_type=sa.String(12), nullable=False)
    op.create_table(
        "admin_keys",
        sa.Column("public_id", sa.String(12), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.Column("pepper_id", sa.String(16), nullable=False),
        sa.Column("last_four", sa.String(4), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("public_id", name=op.f("pk_admin_keys")),
        sa.CheckConstraint("role IN ('admin', 'billing', 'viewer')", name=op.f("ck_admin_keys_role")),
    )
    op.create_table(
        "audit_log",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(32), nullable=False),
        sa.Column("request_id", sa.String(128), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("resource", sa.String(32), nullable=False),
        sa.Column("resource_id", sa.String(128), nullable=False),
        sa.Column("tenant_id", sa.String(36), nullable=True),
        sa.Column("before", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("digest", sa.LargeBinary(32), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit_log")),
    )
    op.create_index(op.f("ix_audit_log_tenant_id"), "audit_log", ["tenant_id", "sequence"])
    op.create_index(op.f("ix_audit_log_resource"), "audit_log", ["resource", "resource_id", "sequence"])
    op.create_table(
        "idempotent_requests",
        sa.Column("actor", sa.String(32), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(32), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("actor", "key", name=op.f("pk_idempotent_requests")),
    )
    op.create_index(op.f("ix_idempotent_requests_created_at"), "idempotent_requests", ["created_at"])
    if op.get_bind().dialect.name == "sqlite":
        for event in ("update", "delete"):
            op.execute(_REFUSE_SQLITE.format(event=event))
    else:
        op.execute(_REFUSE_POSTGRESQL)
        op.execute(_TRIGGER_POSTGRESQL)


def downgrade() -> None:
    op.drop_table("idempotent_requests")
    op.drop_table("audit_log")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION audit_log_is_append_only")
    op.drop_table("admin_keys")
    with op.batch_alter_table("api_keys") as keys:
        for column in ("models", "scopes", "lineage", "rotated_to", "expires_at"):
            keys.drop_column(column)
