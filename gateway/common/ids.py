"""Ids of events, ordered by time, and ids of peppers."""

import hashlib
import secrets
import time
from uuid import UUID


def new_event_id(now_ms: int | None = None) -> UUID:
    """A UUID of version 7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, then 74 random ones."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    random = secrets.randbits(74)
    high, low = random >> 62, random & (2**62 - 1)
    return UUID(int=(now_ms & (2**48 - 1)) << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low)


def pepper_id(pepper: bytes) -> str:
    """The public id of a pepper: the first 64 bits of a hash over its 256 random bits."""
    return hashlib.sha256(b"turnpike pepper id\0" + pepper).hexdigest()[:16]
