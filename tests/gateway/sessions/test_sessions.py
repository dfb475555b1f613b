"""Turns as the gateway opens them: alone, alive for as long as they run, stored or as if they had not been."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from gateway.sessions import History, SessionBusy, SessionKey, Sessions, SessionStoreAway, UnreadableHistory
from gateway.sessions.errors import TooManyWaitingTurns
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.packing import MAX_INLINE_BYTES
from gateway.sessions.sessions import MAX_WAITING, MAX_WAITING_OF_TENANT, TurnOutcome

KEY = SessionKey("acme", "trip")


def said(*texts: str) -> History:
    return History(messages=tuple({"role": "user", "content": text} for text in texts))


@pytest.fixture
async def sessions(store):
    sessions = Sessions(store, wait_s=0.0)
    yield sessions
    assert sessions.counts().open == 0
    await sessions.aclose()


async def turn(sessions: Sessions, text: str) -> None:
    async with sessions.turn(KEY) as opened:
        assert await opened.keep(said(*(each["content"] for each in opened.history.messages), text))


async def test_turns_follow_one_another(sessions):
    for text in ("a", "b", "c"):
        await turn(sessions, text)
    stored = await sessions.read(KEY)
    assert stored.history == said("a", "b", "c")
    assert 0 < stored.expires_in_ms <= 3_600_000
    assert sessions.counts().outcomes[TurnOutcome.KEPT] == 3


@pytest.mark.parametrize("text", ["x" * 100, "x" * (2 * MAX_INLINE_BYTES)])
async def test_short_and_long_histories_are_the_same(sessions, text):
    await turn(sessions, text)
    assert (await sessions.read(KEY)).history == said(text)


async def test_a_turn_that_fails_leaves_all_as_it_was(sessions):
    await turn(sessions, "a")
    with pytest.raises(ZeroDivisionError):
        async with sessions.turn(KEY):
            raise ZeroDivisionError
    async with sessions.turn(KEY) as opened:
        assert opened.history == said("a")
    assert sessions.counts().outcomes[TurnOutcome.DROPPED] == 2


async def test_a_second_turn_is_refused_while_the_first_runs(sessions):
    async with sessions.turn(KEY) as opened:
        with pytest.raises(SessionBusy):
            async with sessions.turn(KEY):
                pass
        async with sessions.turn(SessionKey("acme", "other")):
            pass
        assert await opened.keep(said("a"))
    assert sessions.counts().outcomes[TurnOutcome.BUSY] == 1


async def test_a_second_turn_waits_and_goes_on_with_the_first(store):
    sessions = Sessions(store, wait_s=30.0)
    first_runs = asyncio.Event()

    async def first() -> None:
        async with sessions.turn(KEY) as opened:
            first_runs.set()
            await asyncio.sleep(0.05)
            await opened.keep(said("a"))

    task = asyncio.create_task(first())
    await first_runs.wait()
    async with sessions.turn(KEY) as opened:
        assert opened.history == said("a")
    await task
    await sessions.aclose()


async def test_few_may_wait(store):
    sessions = Sessions(store, wait_s=30.0)

    async def one() -> None:
        async with sessions.turn(KEY):
            pass

    async with sessions.turn(KEY):
        waiting = [asyncio.create_task(one()) for _ in range(MAX_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(SessionBusy):
            await one()
    await asyncio.gather(*waiting)
    await sessions.aclose()


async def test_of_one_tenant_so_many_turns_wait_and_the_others_of_it_are_refused(store):
    """The limit covers all sessions of a tenant. Other tenants' turns still wait; one that need not wait begins."""
    sessions = Sessions(store, wait_s=30.0)

    async def one(tenant: str, session: str) -> None:
        async with sessions.turn(SessionKey(tenant, session)):
            pass

    keys = [SessionKey("acme", f"{n}") for n in range(MAX_WAITING_OF_TENANT + 1)]
    async with AsyncExitStack() as turns:
        for key in (*keys, SessionKey("globex", "0")):
            await turns.enter_async_context(sessions.turn(key))
        waiting = [asyncio.create_task(one(*key)) for key in keys[:-1]]
        while sum(sessions._waiting_of.values()) < MAX_WAITING_OF_TENANT:
            await asyncio.sleep(0)
        with pytest.raises(TooManyWaitingTurns):
            await one(*keys[-1])
        await one("acme", "free")
        waiting.append(asyncio.create_task(one("globex", "0")))
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        waiting[0] = asyncio.create_task(one(*keys[-1]))
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in waiting)
    await asyncio.gather(*waiting)
    assert not sessions._waiting_of
    assert not sessions._waiting
    assert sessions.counts().outcomes[TurnOutcome.BUSY] == 1
    await sessions.aclose()


async def test_twenty_at_once_are_one_after_another(store):
    sessions = [Sessions(store, wait_s=30.0) for _ in range(5)]
    texts = [f"{n}" for n in range(20)]
    await asyncio.gather(*(turn(sessions[n // MAX_WAITING], text) for n, text in enumerate(texts)))
    stored = await sessions[0].read(KEY)
    assert sorted(each["content"] for each in stored.history.messages) == sorted(texts)


async def test_a_long_turn_keeps_its_session(store, clock, monkeypatch):
    monkeypatch.setattr("gateway.sessions.sessions.HEARTBEAT_S", 0.01)
    sessions = Sessions(store, wait_s=0.0)
    async with sessions.turn(KEY) as opened:
        for _ in range(5):
            clock.advance(20)
            await asyncio.sleep(0.1)
        with pytest.raises(SessionBusy):
            async with sessions.turn(KEY):
                pass
        assert await opened.keep(said("a"))
    await sessions.aclose()


async def test_a_session_deleted_from_under_its_turn_stays_deleted(sessions):
    await turn(sessions, "a")
    async with sessions.turn(KEY) as opened:
        assert await sessions.delete(KEY)
        assert not await opened.keep(said("a", "b"))
    assert await sessions.read(KEY) is None
    assert not await sessions.delete(KEY)
    assert sessions.counts().outcomes[TurnOutcome.OVERTAKEN] == 1


async def test_what_cannot_be_read_stops_a_turn_until_it_is_deleted(sessions, store):
    await store.begin(KEY, "other")
    await store.store(KEY, "other", b"what is this?")
    with pytest.raises(UnreadableHistory):
        async with sessions.turn(KEY):
            pass
    with pytest.raises(UnreadableHistory):
        await sessions.read(KEY)
    assert await sessions.delete(KEY)
    await turn(sessions, "a")
    assert sessions.counts().outcomes[TurnOutcome.UNAVAILABLE] == 1


class FailingStore(MemorySessionStore):
    """Fails in the methods named by `failing`; what was asked of it has taken place all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: set[str] = set()

    async def begin(self, key, token):
        begun = await super().begin(key, token)
        return self._fail("begin") or begun

    async def store(self, key, token, value):
        self._fail("store")
        return await super().store(key, token, value)

    def _fail(self, name: str) -> None:
        if name in self.failing:
            raise SessionStoreAway("gone")


async def test_a_turn_that_cannot_be_stored_says_so_and_ends():
    store = FailingStore()
    sessions = Sessions(store, wait_s=0.0)
    await turn(sessions, "a")
    store.failing = {"store"}
    async with sessions.turn(KEY) as opened:
        assert not await opened.keep(said("a", "b"))
    store.failing = set()
    async with sessions.turn(KEY) as opened:
        assert opened.history == said("a")
    assert sessions.counts().outcomes[TurnOutcome.STORE_AWAY] == 1


async def test_a_turn_whose_beginning_was_not_heard_of_keeps_nobody_out():
    store = FailingStore()
    store.failing = {"begin"}
    sessions = Sessions(store, wait_s=0.0)
    with pytest.raises(SessionStoreAway):
        async with sessions.turn(KEY):
            pass
    store.failing = set()
    await turn(sessions, "a")
    assert sessions.counts().outcomes[TurnOutcome.UNAVAILABLE] == 1
