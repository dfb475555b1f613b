"""Signatures of usage events: only an event that was signed under the pepper is billed.

HMAC-SHA256 (RFC 2104) under a key derived from the pepper, over `UsageEvent.canonical`: whoever can write to Kafka or
ClickHouse and does not know the pepper can neither make an event nor change one. A signature is made when an event
leaves its journal, travels beside it (a header in Kafka, a column in ClickHouse), and is verified before the event is
stored, and again by `turnpike reconcile`.
"""

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gateway.analytics import Analytics
from gateway.common.ids import pepper_id
from gateway.common.timestamps import unix_ms
from gateway.metering.event import UsageEvent, canonical_of

HEADER = "turnpike-signature"
"""Of a Kafka message."""
UPGRADE_GRACE_MS = 24 * 3_600_000
"""How long after the upgrade of a store with unsigned events others are accepted, where no setting says: as long as
gateways of the former version may run, and what they sent may lie in Kafka."""

Signed = Callable[[UsageEvent, str], str]
"""An event and the signature that came with it, or "" -> the signature to store with it, or "".
Raises `UnauthenticatedEvent`."""


class UnauthenticatedEvent(Exception):
    """An event whose signature is missing, or not that of this pepper and of these fields; the message says which."""


class EventSigner:
    """Signs and verifies under one pepper. A signature is `PEPPER_ID:HMAC`, both hexadecimal: the id tells an event
    that was signed under another pepper from one that was changed."""

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.digest(pepper, b"turnpike usage events", "sha256")
        self._pepper_id = pepper_id(pepper)

    def sign(self, event: UsageEvent) -> str:
        return self._sign(event.canonical())

    def sign_json(self, body: bytes) -> str:
        """The signature of `UsageEvent.to_json`; "" for what is no event, which its reader will see for itself."""
        try:
            return self._sign(canonical_of(body))
        except (ValueError, KeyError, TypeError):
            return ""

    def _sign(self, canonical: bytes) -> str:
        return f"{self._pepper_id}:{hmac.digest(self._key, canonical, 'sha256').hex()}"

    def verify(self, event: UsageEvent, signature: str) -> None:
        """
        Raises:
            UnauthenticatedEvent
        """
        if not signature:
            raise UnauthenticatedEvent("no signature")
        # As bytes: what came may be any text, and only ASCII can be compared as text.
        if hmac.compare_digest(self.sign(event).encode(), signature.encode(errors="replace")):
            return
        stated, _, _ = signature.partition(":")
        if stated != self._pepper_id:
            raise UnauthenticatedEvent(f"signed under the pepper {stated[:16]!r}, and this one is {self._pepper_id!r}")
        raise UnauthenticatedEvent("the signature is not that of these fields")


class Verification:
    """What a sink stores: events with a valid signature, and, for a while after an upgrade, events without one."""

    def __init__(self, signer: EventSigner, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._signer = signer
        self._clock_ms = clock_ms
        self._unsigned_until_ms = 0

    def accept_unsigned_until(self, instant_ms: int) -> None:
        """By this machine's clock: what an event says of its time is not authenticated without a signature."""
        self._unsigned_until_ms = instant_ms

    def __call__(self, event: UsageEvent, signature: str) -> str:
        """`Signed`."""
        if signature or self._clock_ms() >= self._unsigned_until_ms:
            self._signer.verify(event, signature)
        return signature


@dataclass(frozen=True, slots=True)
class SignaturePolicy:
    """Who signs, and until when events without a signature are accepted. None: as the store's history says."""

    signer: EventSigner
    accept_unsigned_until: datetime | None = None

    async def unsigned_until_ms(self, analytics: Analytics) -> int:
        """Unix time; 0 where every event must be signed, as in a store that never had one that was not.

        Raises:
            AnalyticsAway, AnalyticsRefused
        """
        if self.accept_unsigned_until is not None:
            return unix_ms(self.accept_unsigned_until)
        [(upgrades, first_ms)] = await analytics.query(
            "SELECT count(), toUnixTimestamp64Milli(min(upgraded_at)) FROM usage_signature_upgrades"
        )
        return int(first_ms) + UPGRADE_GRACE_MS if upgrades else 0
