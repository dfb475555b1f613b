"""Sessions of the console: a signed cookie that holds no key.

A token is `kind.key_id.issued_at.id.signature`. It says whose key opened the session and ends after `LIFETIME`; whether
the key is still in use is looked up at every request, so a session ends with its key. Nothing is stored but the ids of
sessions that were ended by hand (`endings.py`), for as long as they would have lasted.
"""

import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

LIFETIME = timedelta(hours=12)

_TOKEN = re.compile(r"(admin|tenant)\.([a-z0-9]{12})\.([0-9]{1,12})\.([A-Za-z0-9_-]{22})\.([0-9a-f]{64})")


class KeyKind(StrEnum):
    ADMIN = "admin"
    TENANT = "tenant"


@dataclass(frozen=True, slots=True)
class Session:
    """`key_id`: the public id of the key that opened it."""

    kind: KeyKind
    key_id: str
    issued_at: int
    id: str

    @property
    def over_at(self) -> datetime:
        """When its token does not do any more."""
        return datetime.fromtimestamp(self.issued_at, UTC) + LIFETIME

    @property
    def told(self) -> str:
        return f"{self.kind}.{self.key_id}.{self.issued_at}.{self.id}"


class ConsoleSessions:
    """Opens and reads sessions. Replicas with the same pepper read each other's."""

    def __init__(self, pepper: bytes, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._sign = hmac.digest(pepper, b"turnpike console sessions", "sha256")
        self._csrf = hmac.digest(pepper, b"turnpike console forms", "sha256")
        self._grants = hmac.digest(pepper, b"turnpike console playground", "sha256")
        self._now = now

    def open(self, kind: KeyKind, key_id: str) -> str:
        """The token of a new session."""
        session = Session(kind, key_id, int(self._now().timestamp()), secrets.token_urlsafe(16))
        return f"{session.told}.{self._signature(session)}"

    def read(self, token: str) -> Session | None:
        """None: it is no token of ours, or is over `LIFETIME` old."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return None
        session = Session(KeyKind(match[1]), match[2], int(match[3]), match[4])
        if not hmac.compare_digest(match[5], self._signature(session)):
            return None
        age_s = self._now().timestamp() - session.issued_at
        return session if -60 <= age_s < LIFETIME.total_seconds() else None

    def csrf_token(self, session: Session) -> str:
        """The token that every form of the session carries. Only pages of the session contain it."""
        return hmac.digest(self._csrf, session.told.encode(), "sha256").hex()

    def is_csrf_token(self, session: Session, presented: str) -> bool:
        return hmac.compare_digest(self.csrf_token(session).encode(), presented.encode())

    def key_grant(self, session: Session, key_id: str) -> str:
        """A grant of a tenant's key to the playground of a session: its public id, signed for the session."""
        return f"{key_id}.{hmac.digest(self._grants, f'{session.told}.{key_id}'.encode(), 'sha256').hex()}"

    def granted_key(self, session: Session, presented: str) -> str | None:
        """The public id of the key that `key_grant` names. None: it is not a grant of this session."""
        key_id = presented.partition(".")[0]
        return key_id if hmac.compare_digest(self.key_grant(session, key_id).encode(), presented.encode()) else None

    def _signature(self, session: Session) -> str:
        return hmac.digest(self._sign, session.told.encode(), "sha256").hex()
