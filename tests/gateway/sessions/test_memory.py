"""The store in this process's memory is bounded."""

from gateway.sessions import SessionKey
from gateway.sessions.memory import MemorySessionStore
from gateway.sessions.store import SESSION_TTL_MS


async def remember(store, tenant: str, session: str, size: int = 1) -> None:
    key = SessionKey(tenant, session)
    assert await store.begin(key, session) is not None
    assert await store.store(key, session, bytes(size))
    store.check()


async def ids(store, tenant: str, *sessions: str) -> list[str]:
    return [each for each in sessions if await store.read(SessionKey(tenant, each)) is not None]


async def test_of_too_many_the_least_recently_used_goes(clock):
    store = MemorySessionStore(clock, per_tenant=2)
    await remember(store, "acme", "a")
    await remember(store, "acme", "b")
    await remember(store, "globex", "other")
    await remember(store, "acme", "a")
    await remember(store, "acme", "c")
    assert await ids(store, "acme", "a", "b", "c") == ["a", "c"]
    assert await ids(store, "globex", "other") == ["other"]
    assert store.counts() == {"sessions": 3, "bytes": 3, "evicted": 1}


async def test_a_session_with_a_turn_under_way_stays(clock):
    store = MemorySessionStore(clock, per_tenant=1)
    await remember(store, "acme", "a")
    await store.begin(SessionKey("acme", "a"), "turn")
    await remember(store, "acme", "b")
    assert await store.store(SessionKey("acme", "a"), "turn", b"more")
    assert await ids(store, "acme", "a", "b") == ["a"]


async def test_over_all_bytes_the_tenant_with_the_most_gives_way(clock):
    store = MemorySessionStore(clock, total_bytes=100)
    await remember(store, "small", "s", 20)
    await remember(store, "large", "a", 40)
    await remember(store, "large", "b", 40)
    await remember(store, "small", "t", 20)
    assert await ids(store, "small", "s", "t") == ["s", "t"]
    assert await ids(store, "large", "a", "b") == ["b"]


async def test_what_has_expired_is_gone_with_the_next_turn_of_anybody(clock):
    store = MemorySessionStore(clock)
    await remember(store, "acme", "a")
    clock.now_ms += SESSION_TTL_MS
    await remember(store, "globex", "b")
    assert store.counts() == {"sessions": 1, "bytes": 1, "evicted": 0}
