"""Authenticator: from a presented key to a principal, from memory.

How long a request waits:

    age of the cached read               database available            database away
    up to REFRESH_S                      no wait                       no wait
    up to MAX_LAG_S                      no wait; read in background   no wait
    older                                one read                      no wait up to MAX_OUTAGE_S; then refused
    no cached read                       one read                      refused: `StoreUnavailable`

A revoked key is therefore refused at most MAX_LAG_S + READ_TIMEOUT_S = 5 s after its revocation while the database
answers, and MAX_OUTAGE_S after it during an outage. Age counts from before the read was sent. The end of an outage is
noticed within RETRY_S + READ_TIMEOUT_S = 3 s, with or without requests.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hmac import compare_digest
from typing import Generic, Protocol, TypeVar

from cachetools import LRUCache

from gateway.tenancy.errors import InvalidKey, StoreUnavailable, TenantSuspended
from gateway.tenancy.keys import TENANT_PREFIX, parse_key
from gateway.tenancy.records import ActiveKey, RevokedKey

Who = TypeVar("Who")
Who_co = TypeVar("Who_co", covariant=True)

REFRESH_S = 1.5
MAX_LAG_S = 3.0
READ_TIMEOUT_S = 2.0
RETRY_S = 1.0
"""Seconds between a failed read and the next one."""
MAX_OUTAGE_S = 15 * 60.0

MAX_KNOWN_KEYS = 100_000
MAX_UNKNOWN_KEYS = 10_000
MAX_WAITING_READS = 4_096
READ_BATCH = 256

_NO_DIGEST = bytes(32)
_log = logging.getLogger(__name__)


class KeySource(Protocol[Who_co]):
    """Source of keys: `TenantStore`, or a stand-in. Raises `StoreUnavailable`."""

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey[Who_co]]:
        """The active keys among `public_ids`, by public id."""


class RevokedKeySource(Protocol[Who_co]):
    """Source of revoked keys, so that their refusals are counted for their owners. Raises `StoreUnavailable`."""

    async def revoked_keys(self, public_ids: Sequence[str]) -> Mapping[str, RevokedKey[Who_co]]:
        """The revoked keys among `public_ids`, by public id."""


@dataclass(frozen=True, slots=True)
class _Read(Generic[Who]):
    """Result of a read of a public id, sent at `at` by the clock. `key`: None if no active key has the id. `revoked`:
    the revoked key that has it."""

    key: ActiveKey[Who] | None
    at: float
    revoked: RevokedKey[Who] | None = None


class Authenticator(Generic[Who]):
    """Checks keys of one kind, identified by their prefix. One per process, on one event loop.

    `revoked`: source of revoked keys; None: they are as unknown as invented ones. `clock`: monotonic seconds. `now`:
    time of day; a key expires exactly at its instant, whatever is cached. `aclose` cancels a read in progress.
    """

    def __init__(
        self,
        source: KeySource[Who],
        pepper: bytes,
        *,
        prefix: str = TENANT_PREFIX,
        revoked: RevokedKeySource[Who] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._pepper = pepper
        self._prefix = prefix
        self._revoked = revoked
        self._clock = clock
        self._now = now
        # Separate, so a flood of invented keys cannot evict real ones.
        self._known: LRUCache[str, _Read[Who]] = LRUCache(MAX_KNOWN_KEYS)
        self._unknown: LRUCache[str, _Read[Who]] = LRUCache(MAX_UNKNOWN_KEYS)
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._outage = False

    async def authenticate(self, presented: str) -> Who:
        """The owner of the presented key. After parsing, known and unknown public ids take the same work, and digests
        are compared in constant time.

        Raises:
            TenantSuspended: the key is valid, and its tenant is suspended.
            InvalidKey: malformed, unknown, revoked or expired; with the owner of a revoked or expired key.
            StoreUnavailable: the database does not answer, and there is no recent read of this key.
        """
        presented_key = parse_key(presented, self._prefix)
        presented_digest = presented_key.digest(self._pepper)
        read = await self._find(presented_key.public_id)
        known = read.key or read.revoked
        expected = _NO_DIGEST if known is None else known.digest
        matches = compare_digest(presented_digest, expected)
        if known is None or not matches:
            raise InvalidKey("unknown API key")
        if isinstance(known, RevokedKey):
            raise InvalidKey("revoked API key", known.owner)
        if self._has_ended(known):
            raise InvalidKey("expired API key", known.principal)
        return _principal_of(known)

    async def in_use(self, public_id: str) -> Who:
        """The owner of a key that was presented earlier, by its public id alone. Console sessions use it.

        Raises:
            TenantSuspended, InvalidKey: as in `authenticate`.
            StoreUnavailable: as in `authenticate`.
        """
        key = (await self._find(public_id)).key
        if key is None or self._has_ended(key):
            raise InvalidKey("the key is not in use any more")
        return _principal_of(key)

    def why_ended(self, public_id: str) -> InvalidKey | None:
        """Why the running requests of a key that was presented earlier must end: it is revoked, or its tenant is
        suspended. None: they may continue, also after its expiry. From memory; an old read is repeated in the
        background, so the answer follows a change within REFRESH_S + READ_TIMEOUT_S."""
        read = self._remembered(public_id)
        if self._age(read) > REFRESH_S:
            self._request_read(public_id)
        if read is None:
            return None
        if read.key is None:
            return InvalidKey("revoked API key", None if read.revoked is None else read.revoked.owner)
        if read.key.is_suspended:
            return TenantSuspended("the tenant is suspended", read.key.principal)
        return None

    async def aclose(self) -> None:
        """Cancel a read in progress."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])

    async def _find(self, public_id: str) -> _Read[Who]:
        read = self._remembered(public_id)
        age = self._age(read)
        if read is not None and age <= MAX_LAG_S:
            if age > REFRESH_S:
                self._request_read(public_id)
            return read
        pending = self._request_read(public_id)
        if pending is not None:
            await asyncio.shield(pending)
            read = self._remembered(public_id)
            age = self._age(read)
        # Only an outage extends the age of a cached read: a flood that fills the queue must not keep a revoked key.
        stretched = self._outage and read is not None and read.key is not None and age <= MAX_OUTAGE_S
        if read is not None and (age <= MAX_LAG_S or stretched):
            return read
        raise StoreUnavailable("the database does not answer, and this key was not seen lately")

    def _has_ended(self, key: ActiveKey[Who]) -> bool:
        return key.expires_at is not None and key.expires_at <= self._now()

    def _age(self, read: _Read[Who] | None) -> float:
        return math.inf if read is None else self._clock() - read.at

    def _remembered(self, public_id: str) -> _Read[Who] | None:
        return self._known.get(public_id) or self._unknown.get(public_id)

    def _remember(self, public_id: str, read: _Read[Who]) -> None:
        self._known.pop(public_id, None)
        self._unknown.pop(public_id, None)
        reads = self._unknown if read.key is None else self._known
        reads[public_id] = read

    def _request_read(self, public_id: str) -> asyncio.Future[None] | None:
        """Queue a read of a public id. The future completes with the attempt. None: the database is away, or the queue
        is full."""
        pending = self._wanted.get(public_id)
        if pending is None and not self._outage and len(self._wanted) < MAX_WAITING_READS:
            pending = asyncio.get_running_loop().create_future()
            self._wanted[public_id] = pending
            if self._reader is None:
                self._reader = asyncio.create_task(self._read_wanted())
        return pending

    async def _read_wanted(self) -> None:
        """Read the queued ids, one query at a time: ids that arrive during a query go with the next one, so a flood of
        keys takes one connection. In an outage, repeat until the database answers."""
        try:
            while self._wanted or self._outage:
                if self._outage:
                    await asyncio.sleep(RETRY_S)
                await self._read_batch(list(self._wanted)[:READ_BATCH])
        finally:
            self._reader = None
            self._finish_reads(list(self._wanted))

    async def _read_batch(self, public_ids: list[str]) -> None:
        asked_at = self._clock()
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                found = await self._source.active_keys(public_ids)
                revoked = await self._read_revoked([each for each in public_ids if each not in found])
        except (StoreUnavailable, TimeoutError) as error:
            if not self._outage:
                _log.warning("key store unavailable: %s", str(error) or "no answer in time")
            self._outage = True
        else:
            if self._outage:
                _log.warning("key store available again")
            self._outage = False
            for public_id in public_ids:
                self._remember(public_id, _Read(found.get(public_id), asked_at, revoked.get(public_id)))
        self._finish_reads(public_ids)

    async def _read_revoked(self, public_ids: list[str]) -> Mapping[str, RevokedKey[Who]]:
        return {} if self._revoked is None or not public_ids else await self._revoked.revoked_keys(public_ids)

    def _finish_reads(self, public_ids: list[str]) -> None:
        for public_id in public_ids:
            self._wanted.pop(public_id).set_result(None)


def _principal_of(key: ActiveKey[Who]) -> Who:
    if key.is_suspended:
        raise TenantSuspended("the tenant is suspended", key.principal)
    return key.principal
