"""Signatures of usage events: only events signed under the pepper are billed.

HMAC-SHA256 (RFC 2104) over `UsageEvent.canonical`, under a key derived from the pepper. An attacker with write access
to Kafka or ClickHouse but without the pepper can neither forge nor change an event. The relay signs an event when it
leaves the journal. The signature is a header in Kafka and a column in ClickHouse; the sink verifies it before the
event is stored, and `turnpike reconcile` verifies it again.
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
"""Header of a Kafka message."""
UPGRADE_GRACE_MS = 24 * 3_600_000
"""Default period after a store's upgrade in which unsigned events are accepted: gateways of the former version may
still run, and their events may still be in Kafka."""

Signed = Callable[[UsageEvent, str], str]
"""(event, its signature or "") -> the signature to store, or "". Raises `UnauthenticatedEvent`."""


class UnauthenticatedEvent(Exception):
    """An event whose signature is missing, made under another pepper, or invalid. The message names the reason."""


class EventSigner:
    """Signs and verifies under one pepper. A signature is `PEPPER_ID:HMAC`, both hexadecimal. The id distinguishes an
    event that was signed under another pepper from one that was changed."""

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.digest(pepper, b"turnpike usage events", "sha256")
        self._pepper_id = pepper_id(pepper)

    def sign(self, event: UsageEvent) -> str:
        return self._sign(event.canonical())

    def sign_json(self, body: bytes) -> str:
        """The signature of bytes from `UsageEvent.to_json`; "" for other bytes, which the sink rejects."""
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
        # Compared as bytes: `compare_digest` accepts only ASCII text.
        if hmac.compare_digest(self.sign(event).encode(), signature.encode(errors="replace")):
            return
        stated, _, _ = signature.partition(":")
        if stated != self._pepper_id:
            raise UnauthenticatedEvent(f"signed under the pepper {stated[:16]!r}, and this one is {self._pepper_id!r}")
        raise UnauthenticatedEvent("the signature is not that of these fields")


class Verification:
    """Accepts events with a valid signature, and unsigned events for a period after an upgrade."""

    def __init__(self, signer: EventSigner, clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self._signer = signer
        self._clock_ms = clock_ms
        self._unsigned_until_ms = 0

    def accept_unsigned_until(self, instant_ms: int) -> None:
        """Set the end of the period, by this machine's clock: an unsigned event's own timestamp is not authentic."""
        self._unsigned_until_ms = instant_ms

    def __call__(self, event: UsageEvent, signature: str) -> str:
        """`Signed`."""
        if signature or self._clock_ms() >= self._unsigned_until_ms:
            self._signer.verify(event, signature)
        return signature


@dataclass(frozen=True, slots=True)
class SignaturePolicy:
    """The signer, and the end of the period in which unsigned events are accepted. None: from the store's history."""

    signer: EventSigner
    accept_unsigned_until: datetime | None = None

    async def unsigned_until_ms(self, analytics: Analytics) -> int:
        """Unix milliseconds; 0 where every event must be signed, as in a store that never had an unsigned one.

        Raises:
            AnalyticsAway, AnalyticsRefused
        """
        if self.accept_unsigned_until is not None:
            return unix_ms(self.accept_unsigned_until)
        [(upgrades, first_ms)] = await analytics.query(
            "SELECT count(), toUnixTimestamp64Milli(min(upgraded_at)) FROM usage_signature_upgrades"
        )
        return int(first_ms) + UPGRADE_GRACE_MS if upgrades else 0
