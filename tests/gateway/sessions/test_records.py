"""Values that are put once and read by id, in each store."""

import asyncio

import pytest

from gateway.sessions import SessionKey, Sessions, SessionStoreAway
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.packing import MAX_INLINE_BYTES
from gateway.sessions.records import MAX_RECORD_BYTES, Records
from gateway.sessions.store import SESSION_TTL_MS


@pytest.fixture
def records(store) -> Records:
    return Records(store, "note")


@pytest.mark.parametrize("size", [0, 5, MAX_INLINE_BYTES + 1, MAX_RECORD_BYTES])
async def test_what_is_put_is_there(records, size):
    assert await records.put("acme", "a", b"x" * size)
    assert await records.get("acme", "a") == b"x" * size


async def test_each_tenant_has_its_own(records):
    await records.put("acme", "a", b"mine")
    assert await records.get("globex", "a") is None
    assert not await records.delete("globex", "a")
    assert await records.get("acme", "a") == b"mine"


async def test_what_is_deleted_is_gone(records):
    await records.put("acme", "a", b"mine")
    assert await records.delete("acme", "a")
    assert not await records.delete("acme", "a")
    assert await records.get("acme", "a") is None


async def test_it_lives_as_long_as_a_session_and_reading_does_not_prolong_that(records, clock):
    await records.put("acme", "a", b"mine")
    clock.advance(SESSION_TTL_MS / 1000 - 1)
    assert await records.get("acme", "a") == b"mine"
    clock.advance(1)
    assert await records.get("acme", "a") is None


async def test_one_that_is_too_large_is_not_kept(records):
    assert not await records.put("acme", "a", b"x" * (MAX_RECORD_BYTES + 1))
    assert await records.get("acme", "a") is None


async def test_a_session_of_the_same_name_is_another_thing(store):
    sessions = Sessions(store, wait_s=0)
    await sessions.responses.put("acme", "a", b"mine")
    assert await sessions.read(SessionKey("acme", "a")) is None


async def test_a_tenant_with_too_many_loses_the_oldest(clock):
    store = MemorySessionStore(clock, per_tenant=2)
    records = Records(store, "note")
    for id in "abc":
        assert await records.put("acme", id, b"x")
    assert [await records.get("acme", id) for id in "abc"] == [None, b"x", b"x"]
    store.check()


class AwayStore(MemorySessionStore):
    async def begin(self, key, token):
        raise SessionStoreAway("gone")

    async def read(self, key):
        raise SessionStoreAway("gone")


async def test_with_the_store_away_nothing_is_kept_and_reading_says_so():
    records = Records(AwayStore(), "note")
    assert not await records.put("acme", "a", b"x")
    with pytest.raises(SessionStoreAway):
        await records.get("acme", "a")


@pytest.mark.parametrize("call", ["begin", "store"])
async def test_one_whose_caller_is_cancelled_holds_nothing(store, monkeypatch, call):
    asked, real = asyncio.Event(), getattr(store, call)

    async def slow(*arguments):
        answer = await real(*arguments) if call == "begin" else None
        asked.set()
        await asyncio.Event().wait()
        return answer

    monkeypatch.setattr(store, call, slow)
    putting = asyncio.create_task(Records(store, "note").put("acme", "a", b"mine"))
    await asked.wait()
    putting.cancel()
    await asyncio.wait([putting])
    monkeypatch.undo()
    assert await store.begin(SessionKey("acme", "note/a"), "another") is not None
