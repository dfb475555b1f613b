"""The cache's promises, on a clock that only the test moves."""

import asyncio
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.tenancy import Authenticator, InvalidKey, Principal, StoreUnavailable
from gateway.tenancy import authenticator as module
from gateway.tenancy.errors import TenantSuspended
from gateway.tenancy.keys import new_key
from gateway.tenancy.records import ActiveKey
from tests.gateway.tenancy.fake_source import Clock, FakeSource, settle
from tests.support.tenants import PEPPER


async def test_a_key_names_its_principal(authenticator: Authenticator, source: FakeSource) -> None:
    key = source.add("premium")
    principal = await authenticator.authenticate(key.plaintext)
    assert principal == Principal("tenant-id", "acme", "premium", key.public_id)


async def test_a_key_in_use_skips_the_database(authenticator: Authenticator, source: FakeSource, clock: Clock) -> None:
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    queries = len(source.queries)
    for _ in range(100):
        await authenticator.authenticate(key.plaintext)
    assert len(source.queries) == queries

    clock.now += module.REFRESH_S + 0.1
    source.silent = True  # a read is sent in the background, and no request waits for its answer
    await asyncio.wait_for(authenticator.authenticate(key.plaintext), 1.5)
    await settle()
    assert len(source.queries) == queries + 1


async def test_revocation_applies_within_5_s(authenticator: Authenticator, source: FakeSource, clock: Clock) -> None:
    """However often it is used."""
    assert module.MAX_LAG_S + module.READ_TIMEOUT_S <= 5
    for pause_s in (0.1, 0.7, 1.4, 2.9, 4.9):
        key = source.add()
        await authenticator.authenticate(key.plaintext)
        revoked_at = clock.now
        del source.keys[key.public_id]
        while clock.now - revoked_at <= 5:
            clock.now += pause_s
            try:
                await authenticator.authenticate(key.plaintext)
                assert clock.now - revoked_at < module.MAX_LAG_S
            except InvalidKey:
                break
            await settle()
        else:
            pytest.fail(f"a key used every {pause_s} s outlived its revocation by 5 s")


async def test_a_changed_tier_arrives_as_fast(authenticator: Authenticator, source: FakeSource, clock: Clock) -> None:
    key = source.add("standard")
    await authenticator.authenticate(key.plaintext)
    principal = Principal("tenant-id", "acme", "premium", key.public_id)
    source.keys[key.public_id] = ActiveKey(key.digest(PEPPER), principal)
    clock.now += 5
    assert (await authenticator.authenticate(key.plaintext)).tier == "premium"


async def test_two_keys_that_share_all_but_the_end_are_two(authenticator: Authenticator, source: FakeSource) -> None:
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    other = key.plaintext[:-1] + ("a" if key.plaintext[-1] != "a" else "b")
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(other)
    await authenticator.authenticate(key.plaintext)


async def test_what_the_store_keeps_opens_nothing(authenticator: Authenticator, source: FakeSource) -> None:
    key = source.add()
    for presented in (key.digest(PEPPER).hex(), key.public_id, f"tp-{key.public_id}-{key.digest(PEPPER).hex()[:43]}"):
        with pytest.raises(InvalidKey):
            await authenticator.authenticate(presented)


@pytest.mark.parametrize("presented", ["", "tp--", "\0", "' OR 1=1 --", "x" * 1_000_000, "tp-" + "é" * 56])
async def test_malformed_keys_are_not_read(authenticator: Authenticator, source: FakeSource, presented: str) -> None:
    with pytest.raises(InvalidKey):
        await authenticator.authenticate(presented)
    assert source.queries == []


async def test_unknown_and_known_ids_take_the_same_steps(
    authenticator: Authenticator, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digest and a constant-time comparison of 32 bytes, whether there is something to compare with or not."""
    compared: list[tuple[int, int]] = []

    def spy(one: Any, other: Any) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr(module, "compare_digest", spy)
    known, unknown = source.add(), new_key()
    wrong = known.plaintext[:-1] + ("a" if known.plaintext[-1] != "a" else "b")
    for presented in (wrong, unknown.plaintext, wrong, unknown.plaintext):
        with pytest.raises(InvalidKey):
            await authenticator.authenticate(presented)
    assert compared == [(32, 32)] * 4


async def test_errors_do_not_repeat_the_key(authenticator: Authenticator, source: FakeSource) -> None:
    key = new_key()
    with pytest.raises(InvalidKey) as unknown:
        await authenticator.authenticate(key.plaintext)
    source.down = True
    with pytest.raises(StoreUnavailable) as down:
        await authenticator.authenticate(new_key().plaintext)
    for error in (unknown.value, down.value):
        assert "tp-" not in str(error)
        assert key.plaintext[16:] not in repr(error)


class TestBounds:
    async def test_unknown_keys_are_read_in_turn(self, authenticator: Authenticator, source: FakeSource) -> None:
        strangers = [new_key() for _ in range(1000)]
        outcomes = await asyncio.gather(
            *(authenticator.authenticate(key.plaintext) for key in strangers), return_exceptions=True
        )
        assert {type(outcome) for outcome in outcomes} == {InvalidKey}
        assert source.most_running == 1
        assert max(map(len, source.queries)) <= module.READ_BATCH
        assert len(source.queries) <= 1 + -(-1000 // module.READ_BATCH)

    async def test_too_many_waiting_is_503_and_no_outage(
        self, authenticator: Authenticator, source: FakeSource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_WAITING_READS", 10)
        keys = [source.add() for _ in range(11)]
        outcomes = await asyncio.gather(
            *(authenticator.authenticate(key.plaintext) for key in keys), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [Principal] * 10 + [StoreUnavailable]
        await authenticator.authenticate(keys[10].plaintext)

    async def test_a_full_queue_does_not_stretch_a_key(
        self, authenticator: Authenticator, source: FakeSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_WAITING_READS", 1)
        key = source.add()
        await authenticator.authenticate(key.plaintext)
        del source.keys[key.public_id]
        clock.now += 60
        outcomes = await asyncio.gather(
            *(authenticator.authenticate(each.plaintext) for each in (new_key(), key)), return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [InvalidKey, StoreUnavailable]

    async def test_unknown_keys_do_not_evict_known_ones(
        self, source: FakeSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_UNKNOWN_KEYS", 5)
        authenticator = Authenticator(source, PEPPER, clock=clock)
        key = source.add()
        await authenticator.authenticate(key.plaintext)
        for _ in range(50):
            with pytest.raises(InvalidKey):
                await authenticator.authenticate(new_key().plaintext)
        assert len(authenticator._unknown) == 5
        queries = len(source.queries)
        await authenticator.authenticate(key.plaintext)
        assert len(source.queries) == queries

    async def test_known_keys_have_a_bound(
        self, source: FakeSource, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_KNOWN_KEYS", 3)
        authenticator = Authenticator(source, PEPPER, clock=clock)
        keys = [source.add() for _ in range(5)]
        for key in (*keys[:3], keys[0], *keys[3:]):
            await authenticator.authenticate(key.plaintext)
        assert set(authenticator._known) == {keys[each].public_id for each in (0, 3, 4)}

    async def test_concurrent_calls_share_a_read(self, authenticator: Authenticator, source: FakeSource) -> None:
        key = source.add()
        await asyncio.gather(*(authenticator.authenticate(key.plaintext) for _ in range(100)))
        assert source.queries == [[key.public_id]]

    async def test_a_cancelled_call_keeps_the_others(self, authenticator: Authenticator, source: FakeSource) -> None:
        key = source.add()
        first = asyncio.create_task(authenticator.authenticate(key.plaintext))
        second = asyncio.create_task(authenticator.authenticate(key.plaintext))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).key_id == key.public_id

    async def test_close_ends_the_read_and_its_waiters(self, authenticator: Authenticator, source: FakeSource) -> None:
        source.silent = True
        waiting = asyncio.create_task(authenticator.authenticate(source.add().plaintext))
        await settle()
        await authenticator.aclose()
        with pytest.raises(StoreUnavailable):
            await waiting
        assert source.running == 0


async def test_a_suspended_tenant_is_told_apart_only_to_the_bearer_of_its_key(
    authenticator: Authenticator, source: FakeSource, clock: Clock
) -> None:
    key = source.add()
    source.keys[key.public_id] = replace(source.keys[key.public_id], is_suspended=True)
    with pytest.raises(TenantSuspended):
        await authenticator.authenticate(key.plaintext)
    with pytest.raises(TenantSuspended):
        await authenticator.in_use(key.public_id)
    source.keys[key.public_id] = replace(source.keys[key.public_id], digest=bytes(32))
    clock.now += module.MAX_LAG_S + 1
    with pytest.raises(InvalidKey) as caught:
        await authenticator.authenticate(key.plaintext)
    assert not isinstance(caught.value, TenantSuspended)


class TestOwnersOfRefusedKeys:
    """A request with a whole key is refused as its owner's; one that only has the key's public id is not."""

    @pytest.fixture
    async def attributing(self, source: FakeSource, clock: Clock, anyio_backend: str) -> AsyncIterator[Authenticator]:
        now = datetime(2026, 3, 1, tzinfo=UTC)
        authenticator = Authenticator(source, PEPPER, revoked=source, clock=clock, now=lambda: now)
        yield authenticator
        await authenticator.aclose()

    async def test_a_revoked_key(self, attributing: Authenticator, source: FakeSource, clock: Clock) -> None:
        key = source.add()
        owner = await attributing.authenticate(key.plaintext)
        source.revoke(key)
        clock.now += module.MAX_LAG_S + 1
        for _ in range(2):  # read, and from memory
            with pytest.raises(InvalidKey) as refused:
                await attributing.authenticate(key.plaintext)
            assert refused.value.owner == owner
        with pytest.raises(InvalidKey) as refused:
            await attributing.in_use(key.public_id)

    async def test_an_expired_key(self, attributing: Authenticator, source: FakeSource) -> None:
        key = source.add()
        expired = replace(source.keys[key.public_id], expires_at=datetime(2026, 2, 1, tzinfo=UTC))
        source.keys[key.public_id] = expired
        with pytest.raises(InvalidKey) as refused:
            await attributing.authenticate(key.plaintext)
        assert refused.value.owner == expired.principal

    async def test_the_key_of_a_suspended_tenant(self, attributing: Authenticator, source: FakeSource) -> None:
        key = source.add()
        source.keys[key.public_id] = suspended = replace(source.keys[key.public_id], is_suspended=True)
        with pytest.raises(TenantSuspended) as refused:
            await attributing.authenticate(key.plaintext)
        assert refused.value.owner == suspended.principal

    @pytest.mark.parametrize("revoked", [False, True])
    async def test_a_wrong_secret_has_no_owner(
        self, attributing: Authenticator, source: FakeSource, revoked: bool
    ) -> None:
        key = source.add()
        if revoked:
            source.revoke(key)
        guess = key.plaintext[:-1] + ("a" if key.plaintext[-1] != "a" else "b")
        with pytest.raises(InvalidKey) as refused:
            await attributing.authenticate(guess)
        assert refused.value.owner is None

    async def test_an_invented_key_has_no_owner(self, attributing: Authenticator) -> None:
        for presented in (new_key().plaintext, "tp-nonsense"):
            with pytest.raises(InvalidKey) as refused:
                await attributing.authenticate(presented)
            assert refused.value.owner is None
