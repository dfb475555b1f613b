"""What each store of sessions promises."""

import asyncio

import pytest

from gateway.sessions import SessionKey
from gateway.sessions.store import SESSION_TTL_MS, TURN_TTL_MS, Begun, Stored

pytestmark = pytest.mark.anyio

KEY = SessionKey("acme", "trip")
TURN_S, SESSION_S = TURN_TTL_MS / 1000, SESSION_TTL_MS / 1000


async def remember(store, value: bytes, key: SessionKey = KEY, token: str = "first") -> None:
    assert await store.begin(key, token) is not None
    assert await store.store(key, token, value)


async def test_a_new_session_has_no_value(store):
    assert await store.begin(KEY, "a") == Begun(None)
    assert await store.read(KEY) is None


async def test_what_a_turn_stores_the_next_one_begins_with(store):
    await remember(store, b"\x00one\xff")
    assert await store.begin(KEY, "b") == Begun(b"\x00one\xff")


async def test_one_turn_at_a_time(store):
    await store.begin(KEY, "a")
    assert await store.begin(KEY, "b") is None
    assert not await store.store(KEY, "b", b"b")
    await store.release(KEY, "b")
    assert await store.begin(KEY, "c") is None
    await store.release(KEY, "a")
    assert await store.begin(KEY, "c") == Begun(None)


async def test_a_released_turn_leaves_the_value_as_it_was(store):
    await remember(store, b"one")
    await store.begin(KEY, "b")
    await store.release(KEY, "b")
    assert (await store.read(KEY)).value == b"one"
    assert not await store.store(KEY, "b", b"two")


async def test_tenants_and_sessions_are_apart(store):
    await remember(store, b"one")
    for other in (SessionKey("globex", "trip"), SessionKey("acme", "trip:"), SessionKey("acme", "tri")):
        assert await store.read(other) is None
        assert not await store.delete(other)
        assert await store.begin(other, "o") == Begun(None)
    assert (await store.read(KEY)).value == b"one"


async def test_a_session_lives_for_its_time_and_turns_prolong_it(store, clock):
    await remember(store, b"one")
    clock.advance(SESSION_S - 1)
    assert await store.read(KEY) == Stored(b"one", 1_000)
    assert await store.begin(KEY, "b") == Begun(b"one")
    await store.release(KEY, "b")
    clock.advance(SESSION_S - 1)
    assert await store.begin(KEY, "c") == Begun(b"one")
    assert await store.store(KEY, "c", b"two")
    clock.advance(SESSION_S - 1)
    assert (await store.read(KEY)).value == b"two"
    clock.advance(1)
    assert await store.read(KEY) is None
    assert not await store.delete(KEY)
    assert await store.begin(KEY, "d") == Begun(None)


async def test_a_turn_whose_process_died_ends_by_itself_and_stores_nothing_later(store, clock):
    await remember(store, b"one")
    await store.begin(KEY, "dead")
    clock.advance(TURN_S - 0.001)
    assert await store.begin(KEY, "b") is None
    clock.advance(0.001)
    assert not await store.extend(KEY, "dead")
    assert await store.begin(KEY, "b") == Begun(b"one")
    assert not await store.store(KEY, "dead", b"late")
    await store.release(KEY, "dead")
    assert await store.store(KEY, "b", b"two")
    assert (await store.read(KEY)).value == b"two"


async def test_a_turn_that_gives_signs_of_life_goes_on(store, clock):
    await store.begin(KEY, "a")
    for _ in range(5):
        clock.advance(TURN_S - 1)
        assert await store.extend(KEY, "a")
    assert await store.begin(KEY, "b") is None
    assert await store.store(KEY, "a", b"one")
    assert not await store.extend(KEY, "a")


async def test_deleting_takes_the_turn_under_way_with_it(store):
    await remember(store, b"one")
    await store.begin(KEY, "b")
    assert await store.delete(KEY)
    assert not await store.delete(KEY)
    assert not await store.extend(KEY, "b")
    assert not await store.store(KEY, "b", b"two")
    assert await store.begin(KEY, "c") == Begun(None)


async def test_a_first_turn_can_be_deleted_from_under_way(store):
    await store.begin(KEY, "a")
    assert await store.delete(KEY)
    assert not await store.store(KEY, "a", b"one")
    assert await store.read(KEY) is None


async def test_what_is_repeated_has_the_same_answer(store):
    """As after a connection that broke before the answer."""
    assert await store.begin(KEY, "a") == await store.begin(KEY, "a") == Begun(None)
    assert await store.store(KEY, "a", b"one")
    assert await store.store(KEY, "a", b"one")
    assert await store.begin(KEY, "b") == await store.begin(KEY, "b") == Begun(b"one")
    assert await store.store(KEY, "b", b"two")
    assert not await store.store(KEY, "a", b"one"), "an old turn is not repeated over a newer one"
    assert (await store.read(KEY)).value == b"two"


async def test_of_a_hundred_at_once_one_begins(store):
    begun = await asyncio.gather(*(store.begin(KEY, f"{n}") for n in range(100)))
    assert sum(each is not None for each in begun) == 1
