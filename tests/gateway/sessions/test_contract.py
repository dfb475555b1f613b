"""The contract of every store of sessions."""

import asyncio

import pytest

from gateway.sessions import SessionKey
from gateway.sessions.store import SESSION_TTL_MS, TURN_TTL_MS, BegunTurn, StoredValue

KEY = SessionKey("acme", "trip")
TURN_S, SESSION_S = TURN_TTL_MS / 1000, SESSION_TTL_MS / 1000


async def remember(store, value: bytes, key: SessionKey = KEY, token: str = "first") -> None:
    assert await store.begin(key, token) is not None
    assert await store.store(key, token, value)


async def test_a_new_session_has_no_value(store):
    assert await store.begin(KEY, "a") == BegunTurn(None)
    assert await store.read(KEY) is None


async def test_what_a_turn_stores_the_next_one_begins_with(store):
    await remember(store, b"\x00one\xff")
    assert await store.begin(KEY, "b") == BegunTurn(b"\x00one\xff")


async def test_one_turn_at_a_time(store):
    await store.begin(KEY, "a")
    assert await store.begin(KEY, "b") is None
    assert not await store.store(KEY, "b", b"b")
    await store.release(KEY, "b")
    assert await store.begin(KEY, "c") is None
    await store.release(KEY, "a")
    assert await store.begin(KEY, "c") == BegunTurn(None)


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
        assert await store.begin(other, "o") == BegunTurn(None)
    assert (await store.read(KEY)).value == b"one"


async def test_a_session_lives_for_its_time_and_turns_prolong_it(store, clock):
    await remember(store, b"one")
    clock.advance(SESSION_S - 1)
    assert await store.read(KEY) == StoredValue(b"one", 1_000)
    assert await store.begin(KEY, "b") == BegunTurn(b"one")
    await store.release(KEY, "b")
    clock.advance(SESSION_S - 1)
    assert await store.begin(KEY, "c") == BegunTurn(b"one")
    assert await store.store(KEY, "c", b"two")
    clock.advance(SESSION_S - 1)
    assert (await store.read(KEY)).value == b"two"
    clock.advance(1)
    assert await store.read(KEY) is None
    assert not await store.delete(KEY)
    assert await store.begin(KEY, "d") == BegunTurn(None)


async def test_a_turn_whose_process_died_ends_by_itself_and_stores_nothing_later(store, clock):
    await remember(store, b"one")
    await store.begin(KEY, "dead")
    clock.advance(TURN_S - 0.001)
    assert await store.begin(KEY, "b") is None
    clock.advance(0.001)
    assert not await store.extend(KEY, "dead")
    assert await store.begin(KEY, "b") == BegunTurn(b"one")
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
    assert await store.begin(KEY, "c") == BegunTurn(None)


async def test_a_first_turn_can_be_deleted_from_under_way(store):
    await store.begin(KEY, "a")
    assert await store.delete(KEY)
    assert not await store.store(KEY, "a", b"one")
    assert await store.read(KEY) is None


async def test_what_is_repeated_has_the_same_answer(store):
    """As after a connection that broke before the answer."""
    assert await store.begin(KEY, "a") == await store.begin(KEY, "a") == BegunTurn(None)
    assert await store.store(KEY, "a", b"one")
    assert await store.store(KEY, "a", b"one")
    assert await store.begin(KEY, "b") == await store.begin(KEY, "b") == BegunTurn(b"one")
    assert await store.store(KEY, "b", b"two")
    assert not await store.store(KEY, "a", b"one"), "an old turn is not repeated over a newer one"
    assert (await store.read(KEY)).value == b"two"


async def test_of_a_hundred_at_once_one_begins(store):
    begun = await asyncio.gather(*(store.begin(KEY, f"{n}") for n in range(100)))
    assert sum(each is not None for each in begun) == 1


async def of_acme(store, *sessions: str) -> list[str]:
    return [each for each in sessions if await store.read(SessionKey("acme", each)) is not None]


async def test_of_too_many_sessions_of_a_tenant_the_least_recently_used_goes(small_store):
    for session in ("a", "b", "c"):
        await remember(small_store, b"x", SessionKey("acme", session))
    await remember(small_store, b"x", SessionKey("globex", "other"))
    await remember(small_store, b"xx", SessionKey("acme", "a"), "second")
    await remember(small_store, b"x", SessionKey("acme", "d"))
    assert await of_acme(small_store, "a", "b", "c", "d") == ["a", "c", "d"]
    assert await small_store.read(SessionKey("globex", "other")) is not None


async def test_of_too_many_bytes_of_a_tenant_the_least_recently_used_go(small_store):
    await remember(small_store, bytes(60), SessionKey("acme", "a"))
    await remember(small_store, bytes(40), SessionKey("acme", "b"))
    await remember(small_store, bytes(100), SessionKey("globex", "other"))
    assert await of_acme(small_store, "a", "b") == ["a", "b"]
    await remember(small_store, bytes(20), SessionKey("acme", "c"))
    assert await of_acme(small_store, "a", "b", "c") == ["b", "c"]
    await remember(small_store, bytes(81), SessionKey("acme", "c"), "larger")
    assert await of_acme(small_store, "a", "b", "c") == ["c"]
    assert await small_store.read(SessionKey("globex", "other")) is not None


async def test_a_value_over_the_bound_of_bytes_is_alone(small_store):
    await remember(small_store, bytes(60), SessionKey("acme", "a"))
    await remember(small_store, bytes(200), SessionKey("acme", "b"))
    assert await of_acme(small_store, "a", "b") == ["b"]
    await remember(small_store, bytes(1), SessionKey("acme", "c"))
    assert await of_acme(small_store, "a", "b", "c") == ["c"]


async def test_a_session_with_a_turn_under_way_makes_no_room(small_store):
    await remember(small_store, bytes(60), SessionKey("acme", "a"))
    await small_store.begin(SessionKey("acme", "a"), "turn")
    await remember(small_store, bytes(60), SessionKey("acme", "b"))
    assert await of_acme(small_store, "a", "b") == ["a", "b"]
    await small_store.release(SessionKey("acme", "a"), "turn")
    assert await of_acme(small_store, "a", "b") == ["a"]


@pytest.mark.parametrize("gone", ["deleted", "released", "expired"])
async def test_what_is_gone_counts_no_longer(small_store, clock, gone):
    for session in ("a", "b", "c"):
        if gone == "released":
            await small_store.begin(SessionKey("acme", session), "first")
            await small_store.release(SessionKey("acme", session), "first")
        else:
            await remember(small_store, bytes(33), SessionKey("acme", session))
        if gone == "deleted":
            await small_store.delete(SessionKey("acme", session))
    if gone == "expired":
        clock.advance(SESSION_S)
    for session in ("d", "e", "f"):
        await remember(small_store, bytes(33), SessionKey("acme", session))
    assert await of_acme(small_store, "a", "b", "c", "d", "e", "f") == ["d", "e", "f"]
