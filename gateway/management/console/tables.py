"""The SQL table of the console."""

from datetime import datetime

from sqlalchemy import String
from sqlalchemy.orm import Mapped, mapped_column

from gateway.tenancy.tables import Base, UtcDateTime


class EndedSessionRow(Base):
    """A session that was ended by hand. After `over_at` its cookie would not do either, and the row may go."""

    __tablename__ = "ended_console_sessions"

    id: Mapped[str] = mapped_column(String(22), primary_key=True)
    over_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
