"""Conversations that the gateway remembers: a client sends what is new, and the stored part goes in front.

`Sessions` opens a turn on a session, alone with it; `History` is what is remembered, `window` what of it goes when it
grows too long. The store is this process or Redis, one contract.
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
