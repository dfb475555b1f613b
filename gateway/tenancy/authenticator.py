"""From a presented key to a principal, from memory.

What a request waits for:

    age of what is known of the key      the database answers          it does not
    up to REFRESH_S                      nothing                       nothing
    up to MAX_LAG_S                      nothing; read again behind    nothing
    older                                one read                      nothing, up to MAX_OUTAGE_S; then refused
    nothing known                        one read                      refused: `StoreUnavailable`

So a revoked key is refused at most MAX_LAG_S + READ_TIMEOUT_S = 5 s after its revocation while the database
answers, and MAX_OUTAGE_S after it when it does not. Age counts from before the read was sent. That the database
answers again is noticed within RETRY_S + READ_TIMEOUT_S = 3 s, with or without requests.
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

from gateway.tenancy.errors import InvalidKey, StoreUnavailable
from gateway.tenancy.keys import TENANT_PREFIX, parse_key
from gateway.tenancy.records import ActiveKey

Who = TypeVar("Who")
Who_co = TypeVar("Who_co", covariant=True)

REFRESH_S = 1.5
MAX_LAG_S = 3.0
READ_TIMEOUT_S = 2.0
RETRY_S = 1.0
"""How long after a read that failed the next one is tried."""
MAX_OUTAGE_S = 15 * 60.0

MAX_KNOWN_KEYS = 100_000
MAX_UNKNOWN_KEYS = 10_000
MAX_WAITING_READS = 4_096
READ_BATCH = 256

_NO_DIGEST = bytes(32)
_log = logging.getLogger(__name__)


class KeySource(Protocol[Who_co]):
    """Where keys are read from: `TenantStore`, or a stand-in. Raises `StoreUnavailable`."""

    async def active_keys(self, public_ids: Sequence[str]) -> Mapping[str, ActiveKey[Who_co]]: ...


@dataclass(frozen=True, slots=True)
class _Read(Generic[Who]):
    """What the database said of a public id (None: nothing that opens), asked at `at` by the clock."""

    key: ActiveKey[Who] | None
    at: float


class Authenticator(Generic[Who]):
    """Checks keys of one kind, named by their prefix. One per process, on one event loop; `aclose` ends a read that is
    under way.

    `clock` counts seconds and never goes back. `now` is the time of day: a key that ends at an instant ends then,
    whatever is remembered of it.
    """

    def __init__(
        self,
        source: KeySource[Who],
        pepper: bytes,
        *,
        prefix: str = TENANT_PREFIX,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._pepper = pepper
        self._prefix = prefix
        self._clock = clock
        self._now = now
        # Apart, so that a flood of made-up keys cannot push out real ones.
        self._known: LRUCache[str, _Read[Who]] = LRUCache(MAX_KNOWN_KEYS)
        self._unknown: LRUCache[str, _Read[Who]] = LRUCache(MAX_UNKNOWN_KEYS)
        self._wanted: dict[str, asyncio.Future[None]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._outage = False

    async def authenticate(self, presented: str) -> Who:
        """Who presents this key. The work after parsing is the same for known and unknown public ids.

        Raises:
            InvalidKey: malformed, unknown, revoked, expired, or its tenant is suspended.
            StoreUnavailable: the database does not answer, and this key was not seen lately.
        """
        presented_key = parse_key(presented, self._prefix)
        presented_digest = presented_key.digest(self._pepper)
        key = await self._find(presented_key.public_id)
        expected = _NO_DIGEST if key is None else key.digest
        matches = compare_digest(presented_digest, expected)
        if key is None or not matches or self._has_ended(key):
            raise InvalidKey("unknown API key")
        return key.principal

    async def in_use(self, public_id: str) -> Who:
        """Who a key stands for that was presented earlier, as sessions know it: by its public id alone.

        Raises:
            InvalidKey, StoreUnavailable: as `authenticate` would for the key itself.
        """
        key = await self._find(public_id)
        if key is None or self._has_ended(key):
            raise InvalidKey("the key is not in use any more")
        return key.principal

    async def aclose(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])

    async def _find(self, public_id: str) -> ActiveKey[Who] | None:
        read = self._remembered(public_id)
        age = self._age(read)
        if read is not None and age <= MAX_LAG_S:
            if age > REFRESH_S:
                self._request_read(public_id)
            return read.key
        pending = self._request_read(public_id)
        if pending is not None:
            await asyncio.shield(pending)
            read = self._remembered(public_id)
            age = self._age(read)
        # Only an outage stretches what is known: a flood that fills the queue must not keep a revoked key alive.
        stretched = self._outage and read is not None and read.key is not None and age <= MAX_OUTAGE_S
        if read is not None and (age <= MAX_LAG_S or stretched):
            return read.key
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
        """Have a public id read; the future ends with the attempt. None: not in an outage, nor when too many
        wait already."""
        pending = self._wanted.get(public_id)
        if pending is None and not self._outage and len(self._wanted) < MAX_WAITING_READS:
            pending = asyncio.get_running_loop().create_future()
            self._wanted[public_id] = pending
            if self._reader is None:
                self._reader = asyncio.create_task(self._read_wanted())
        return pending

    async def _read_wanted(self) -> None:
        """Read what is wanted, one query at a time: what is asked for meanwhile goes with the next query, so
        no flood of keys takes more than one connection. In an outage, go on asking until there is an answer."""
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
        except (StoreUnavailable, TimeoutError) as error:
            if not self._outage:
                _log.warning("key store unavailable: %s", str(error) or "no answer in time")
            self._outage = True
        else:
            if self._outage:
                _log.warning("key store available again")
            self._outage = False
            for public_id in public_ids:
                self._remember(public_id, _Read(found.get(public_id), asked_at))
        self._finish_reads(public_ids)

    def _finish_reads(self, public_ids: list[str]) -> None:
        for public_id in public_ids:
            self._wanted.pop(public_id).set_result(None)
