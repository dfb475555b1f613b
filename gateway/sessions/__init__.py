"""Sessions: conversations that the gateway stores, so a client sends only its new messages.

`Sessions` opens an exclusive turn on a session. `History` is the stored conversation, and `window` decides which turns
are dropped when it outgrows its context. The store is in this process or in Redis, with one contract.
"""

from gateway.sessions.errors import SessionBusy, SessionStoreAway, UnreadableHistory
from gateway.sessions.history import History
from gateway.sessions.sessions import OpenTurn, Sessions, StoredHistory
from gateway.sessions.store import SessionKey, SessionStore

__all__ = [
    "History",
    "OpenTurn",
    "SessionBusy",
    "SessionKey",
    "SessionStore",
    "SessionStoreAway",
    "Sessions",
    "StoredHistory",
    "UnreadableHistory",
]
