"""The requests of a key that is revoked end, and nothing is left of those that have ended."""

import asyncio
from contextlib import AbstractContextManager

from hypothesis import given
from hypothesis import strategies as st

from gateway.tenancy import Authenticator, InvalidKey
from gateway.tenancy import authenticator as reads
from gateway.tenancy.errors import TenantSuspended
from gateway.tenancy.key_watch import CHECK_S, KeyWatch
from gateway.tenancy.records import ActiveKey
from tests.gateway.tenancy.fake_source import Clock, FakeSource, settle
from tests.support.tenants import PEPPER
from tests.support.virtual_time import in_virtual_time


async def test_a_revoked_key_ends_its_requests_within_5_s(
    authenticator: Authenticator, source: FakeSource, clock: Clock
) -> None:
    assert CHECK_S + reads.REFRESH_S + reads.READ_TIMEOUT_S + CHECK_S <= 5
    key, other = source.add(), source.add()
    for each in (key, other):
        await authenticator.authenticate(each.plaintext)
    source.revoke(key)
    since = clock.now
    while (reason := authenticator.why_ended(key.public_id)) is None:
        clock.now += CHECK_S
        await settle()
    assert isinstance(reason, InvalidKey)
    assert clock.now - since <= CHECK_S + reads.REFRESH_S + CHECK_S
    assert authenticator.why_ended(other.public_id) is None


async def test_a_suspended_tenant_is_told_so(authenticator: Authenticator, source: FakeSource, clock: Clock) -> None:
    key = source.add()
    principal = await authenticator.authenticate(key.plaintext)
    source.keys[key.public_id] = ActiveKey(key.digest(PEPPER), principal, is_suspended=True)
    clock.now += reads.REFRESH_S + 0.1
    assert authenticator.why_ended(key.public_id) is None
    await settle()
    assert isinstance(authenticator.why_ended(key.public_id), TenantSuspended)


async def test_an_outage_of_the_database_ends_no_request(
    authenticator: Authenticator, source: FakeSource, clock: Clock
) -> None:
    key = source.add()
    await authenticator.authenticate(key.plaintext)
    source.down = True
    for _ in range(10):
        clock.now += reads.MAX_OUTAGE_S
        assert authenticator.why_ended(key.public_id) is None
        await settle()


STEPS = st.lists(st.tuples(st.sampled_from(["begin", "end", "revoke", "wait"]), st.integers(0, 3)), max_size=40)


@given(STEPS)
def test_each_request_is_told_once_and_none_is_kept(steps: list[tuple[str, int]]) -> None:
    """Against a model: the open requests of each key."""

    async def run() -> None:
        revoked: set[str] = set()
        told: list[int] = []
        watch = KeyWatch(lambda key_id: InvalidKey("revoked") if key_id in revoked else None)
        open_: dict[int, tuple[str, AbstractContextManager[None]]] = {}
        expected: set[int] = set()
        for number, (step, key) in enumerate(steps):
            match step:
                case "begin":
                    block = watch.watching(str(key), lambda _, number=number: told.append(number))
                    block.__enter__()
                    open_[number] = str(key), block
                case "end" if open_:
                    _, block = open_.pop(list(open_)[key % len(open_)])
                    block.__exit__(None, None, None)
                case "revoke":
                    revoked.add(str(key))
                case "wait":
                    await asyncio.sleep(CHECK_S * 1.01)
                    expected |= {each for each, (owner, _) in open_.items() if owner in revoked}
                    assert set(told) == expected
            assert watch.running == len(open_) - len([each for each in told if each in open_])
        assert len(told) == len(set(told))
        for _, block in open_.values():
            block.__exit__(None, None, None)
        assert watch.running == 0
        await asyncio.sleep(10 * CHECK_S)

    in_virtual_time(run())
