"""Keys while the database of tenants is away: which still work, for how long, and how the end of it is noticed."""

import asyncio

import pytest

from gateway.tenancy import Authenticator, InvalidKey, StoreUnavailable, open_database
from gateway.tenancy import authenticator as module
from gateway.tenancy.keys import new_key
from gateway.tenancy.schema import upgrade
from tests.gateway.tenancy.fake_source import Clock, FakeSource, without_pauses
from tests.support.servers import PostgresServer, ServerMissing, new_postgres_database, running_postgres
from tests.support.tenants import PEPPER
from tests.support.writers import TenantWriter


async def test_known_keys_work_for_fifteen_minutes_and_not_longer(
    authenticator: Authenticator, source: FakeSource, clock: Clock
) -> None:
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    seen_at = clock.now
    source.down = True
    for elapsed in (5, 60, 15 * 60):
        clock.now = seen_at + elapsed
        await authenticator.authenticate(key.plaintext)
    clock.now = seen_at + 15 * 60 + 0.1
    with pytest.raises(StoreUnavailable):
        await authenticator.authenticate(key.plaintext)


async def test_unknown_keys_are_invalid(authenticator: Authenticator, source: FakeSource, clock: Clock) -> None:
    stranger = new_key()
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(stranger.plaintext)
    source.down = True
    with pytest.raises(StoreUnavailable):
        await authenticator.authenticate(new_key().plaintext)
    clock.now += 60
    with pytest.raises(StoreUnavailable):  # perhaps created in the meantime: the authenticator cannot know
        await authenticator.authenticate(stranger.plaintext)


async def test_wrong_secrets_are_refused_in_an_outage(
    authenticator: Authenticator, source: FakeSource, clock: Clock
) -> None:
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    source.down = True
    clock.now += 60
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(key.plaintext[:-1] + ("a" if key.plaintext[-1] != "a" else "b"))


async def test_requests_do_not_wait_once_an_outage_is_known(
    authenticator: Authenticator, source: FakeSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.05)
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    source.silent = True
    clock.now += 60
    await authenticator.authenticate(key.plaintext)  # the one that finds out
    queries = len(source.queries)
    for _ in range(50):
        await authenticator.authenticate(key.plaintext)
    assert len(source.queries) == queries


async def test_its_end_is_noticed_without_requests(
    authenticator: Authenticator, source: FakeSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_pauses(monkeypatch)
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    source.down = True
    clock.now += 60
    await authenticator.authenticate(key.plaintext)
    source.down = False
    del source.keys[key.public_id]
    await asyncio.sleep(0.1)
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(key.plaintext)


async def test_revocation_is_final(authenticator: Authenticator, source: FakeSource, clock: Clock) -> None:
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    del source.keys[key.public_id]
    clock.now += 5
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(key.plaintext)
    source.down = True
    clock.now += 60
    with pytest.raises(StoreUnavailable):
        await authenticator.authenticate(key.plaintext)


async def test_a_real_server_that_dies_and_comes_back(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    without_pauses(monkeypatch)
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 2.0)
    try:
        with running_postgres() as server:
            await _die_and_come_back(server, clock)
    except ServerMissing as error:
        pytest.skip(str(error))


async def _die_and_come_back(server: PostgresServer, clock: Clock) -> None:
    url = await asyncio.to_thread(new_postgres_database, server.url)
    url = url.replace("postgresql:", "postgresql+asyncpg:")
    await upgrade(url)
    database = open_database(url)
    store = TenantWriter(database, PEPPER)
    authenticator = Authenticator(store, PEPPER, clock=clock)
    await store.create_tenant("acme", "standard")
    known, other = await store.create_key("acme"), await store.create_key("acme")
    await authenticator.authenticate(known.plaintext)

    await asyncio.to_thread(server.stop)
    clock.now += 60
    await authenticator.authenticate(known.plaintext)
    with pytest.raises(StoreUnavailable):
        await authenticator.authenticate(other.plaintext)

    await asyncio.to_thread(server.start)
    await store.revoke_key(known.record.public_id)
    await asyncio.sleep(0.3)
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(known.plaintext)
    await authenticator.authenticate(other.plaintext)
    await authenticator.aclose()
    await database.dispose()
