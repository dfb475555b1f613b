"""Sessions: open an exclusive turn with its history, then store it or leave the history as it was."""

import asyncio
import contextlib
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from gateway.sessions.errors import SessionBusy, SessionStoreAway, TooManyWaitingTurns
from gateway.sessions.history import History, pack, unpack
from gateway.sessions.packing import offload_large
from gateway.sessions.policy import Cut
from gateway.sessions.records import Records
from gateway.sessions.store import BegunTurn, SessionKey, SessionStore

K = TypeVar("K")

HEARTBEAT_S = 10.0
"""Interval of heartbeats in seconds: a third of a turn's lifetime in the store, so two in a row may fail."""
FIRST_RETRY_S = 0.01
LAST_RETRY_S = 0.1
"""Polling interval of a turn that waits for another, in seconds: the first and the longest."""
MAX_WAITING = 4
"""Limit of turns that wait for one session; further ones are refused at once."""
MAX_WAITING_OF_TENANT = 64
"""Limit of turns that wait for any session of one tenant; further ones are refused at once. A waiting turn holds no
limits."""

_log = logging.getLogger(__name__)


class TurnOutcome(StrEnum):
    """Outcome of a turn. `dropped`: it failed, or its client disconnected. `overtaken`: its session was deleted, or the
    turn's lifetime in the store was over. `store_away`: it was answered but could not be stored. The last two never
    began: `busy` as another turn was open, `unavailable` as the history could not be read."""

    KEPT = "kept"
    DROPPED = "dropped"
    OVERTAKEN = "overtaken"
    STORE_AWAY = "store_away"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class StoredHistory:
    """A stored history. `expires_in_ms`: remaining lifetime without a turn. `bytes`: size in the store."""

    history: History
    expires_in_ms: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """Counts for metrics. `open`: current turns. `outcomes`, `cuts`: since the start. `store`: counts of the store."""

    open: int
    outcomes: Mapping[TurnOutcome, int]
    cuts: Mapping[Cut, int]
    store: Mapping[str, int]


@dataclass(slots=True)
class OpenTurn:
    """An exclusive turn on a session. `history`: the stored history when it began."""

    history: History
    _key: SessionKey
    _token: str
    _store: SessionStore
    _cuts: Counter[Cut]
    outcome: TurnOutcome = field(default=TurnOutcome.DROPPED, init=False)

    async def keep(self, history: History, cut: Cut | None = None) -> bool:
        """Store the new history, and end the turn. `cut`: how its oldest turns were cut; None: they were not. False: it
        is not stored, and the history is the former one, or what others have stored since."""
        try:
            stored = await self._store.store(self._key, self._token, await _pack_history(history))
        except SessionStoreAway as error:
            _log.warning("a session's turn is not kept: %s", error)
            self.outcome = TurnOutcome.STORE_AWAY
            return False
        self.outcome = TurnOutcome.KEPT if stored else TurnOutcome.OVERTAKEN
        if stored and cut is not None:
            self._cuts[cut] += 1
        return stored


class Sessions:
    """Opens turns and keeps them alive. One per process, on one event loop.

    `wait_s`: seconds for which a turn waits for another one on the same session before it is refused. `responses`:
    stored answers that a client can continue by id, in the same store.
    """

    def __init__(self, store: SessionStore, *, wait_s: float) -> None:
        self.responses = Records(store, "response", self._release)
        self._store = store
        self._wait_s = wait_s
        self._waiting: Counter[SessionKey] = Counter()
        self._waiting_of: Counter[str] = Counter()
        self._open: dict[str, SessionKey] = {}
        self._heart: asyncio.Task[None] | None = None
        self._releasing: set[asyncio.Task[None]] = set()
        self._outcomes: Counter[TurnOutcome] = Counter()
        self._cuts: Counter[Cut] = Counter()

    @asynccontextmanager
    async def turn(self, key: SessionKey) -> AsyncIterator[OpenTurn]:
        """An exclusive turn for the duration of the block. If the block does not store it, the history stays as it was.

        Raises:
            SessionBusy: another turn was open for as long as this one may wait.
            TooManyWaitingTurns: another turn is open, and too many of the tenant's turns wait already.
            SessionStoreAway: the history cannot be read.
            UnreadableHistory: the stored value is not a history.
        """
        token = uuid.uuid4().hex
        turn = await self._begin(key, token)
        try:
            yield turn
        finally:
            self._open.pop(token, None)
            self._outcomes[turn.outcome] += 1
            if turn.outcome is not TurnOutcome.KEPT:
                await self._release(key, token)

    async def read(self, key: SessionKey) -> StoredHistory | None:
        """The stored history; None: there is none. Raises SessionStoreAway, UnreadableHistory."""
        stored = await self._store.read(key)
        if stored is None:
            return None
        return StoredHistory(await _unpack_history(stored.value), stored.expires_in_ms, len(stored.value))

    async def delete(self, key: SessionKey) -> bool:
        """Delete a session. An open turn on it is answered but not stored. False: there is no such session.

        Raises:
            SessionStoreAway: the store does not answer.
        """
        return await self._store.delete(key)

    def counts(self) -> SessionCounts:
        """Counts for metrics."""
        return SessionCounts(
            len(self._open),
            {outcome: self._outcomes[outcome] for outcome in TurnOutcome},
            {cut: self._cuts[cut] for cut in Cut},
            self._store.counts(),
        )

    async def aclose(self) -> None:
        """Stop the heartbeat, finish the releases and close the store."""
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait([self._heart])
        if self._releasing:
            await asyncio.wait(self._releasing)
        await self._store.aclose()

    async def _begin(self, key: SessionKey, token: str) -> OpenTurn:
        try:
            value = await self._begin_in_time(key, token)
            history = History() if value is None else await _unpack_history(value)
        except BaseException as error:
            busy = isinstance(error, (SessionBusy, TooManyWaitingTurns))
            self._outcomes[TurnOutcome.BUSY if busy else TurnOutcome.UNAVAILABLE] += 1
            # The turn may have begun in the store, whose answer came too late.
            await self._release(key, token)
            raise
        self._open[token] = key
        if self._heart is None:
            self._heart = asyncio.create_task(self._beat())
        return OpenTurn(history, key, token, self._store, self._cuts)

    async def _begin_in_time(self, key: SessionKey, token: str) -> bytes | None:
        """Begin a turn as soon as no other one is open."""
        if self._waiting[key] >= MAX_WAITING:
            raise SessionBusy
        with _counting(self._waiting, key):
            begun = await self._store.begin(key, token)
            if begun is None:
                begun = await self._begin_after_another(key, token)
        return begun.value

    async def _begin_after_another(self, key: SessionKey, token: str) -> BegunTurn:
        if self._waiting_of[key.tenant_id] >= MAX_WAITING_OF_TENANT:
            raise TooManyWaitingTurns
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self._wait_s, FIRST_RETRY_S
        with _counting(self._waiting_of, key.tenant_id):
            while loop.time() < until:
                await asyncio.sleep(min(pause_s, max(0.0, until - loop.time())))
                begun = await self._store.begin(key, token)
                if begun is not None:
                    return begun
                pause_s = min(2 * pause_s, LAST_RETRY_S)
        raise SessionBusy

    async def _release(self, key: SessionKey, token: str) -> None:
        """End a turn, even if the caller is cancelled. If the store is away, the turn expires there."""

        async def release() -> None:
            with contextlib.suppress(SessionStoreAway):
                await self._store.release(key, token)

        task = asyncio.create_task(release())
        self._releasing.add(task)
        task.add_done_callback(self._releasing.discard)
        await asyncio.shield(task)

    async def _beat(self) -> None:
        """Extend all open turns until there are none."""
        try:
            while self._open:
                await asyncio.sleep(HEARTBEAT_S)
                for token, key in list(self._open.items()):
                    if token in self._open:
                        with contextlib.suppress(SessionStoreAway):  # the next beat is within the turn's lifetime
                            await self._store.extend(key, token)
        finally:
            self._heart = None


@contextmanager
def _counting(counter: Counter[K], key: K) -> Iterator[None]:
    """Count `key` for the duration of the block. Keys with a count of 0 are removed."""
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


async def _pack_history(history: History) -> bytes:
    data = history.to_json()
    return await offload_large(len(data), pack, data)


async def _unpack_history(value: bytes) -> History:
    return await offload_large(len(value), lambda packed_value: History.from_json(unpack(packed_value)), value)
