"""The SQL tables of the console."""

from datetime import datetime

from sqlalchemy import ForeignKey, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.tenancy.tables import Base, UtcDateTime


class EndedSessionRow(Base):
    """A session that was ended by hand. After `over_at` its cookie would not do either, and the row may go."""

    __tablename__ = "ended_console_sessions"

    id: Mapped[str] = mapped_column(String(22), primary_key=True)
    over_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)


class ConsoleLinkRow(Base):
    """A link that logs in once, until `expires_at`. `digest`: HMAC-SHA256 of its token. `key_id`: public id of the
    administrator's key that its session belongs to."""

    __tablename__ = "console_links"

    digest: Mapped[bytes] = mapped_column(LargeBinary(32), primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("admin_keys.public_id"))
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
