"""Tokens of sessions, and how often keys may be tried, on clocks that only the test moves."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.management.console.sessions import LIFETIME, ConsoleSessions, KeyKind, Session
from gateway.management.console.throttle import MAX_ADDRESSES, MAX_FAILURES, WINDOW_S, LoginThrottle
from tests.support.tenants import PEPPER

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.at = NOON

    def __call__(self) -> datetime:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> ConsoleSessions:
    return ConsoleSessions(PEPPER, clock)


def read(sessions: ConsoleSessions, token: str) -> Session:
    session = sessions.read(token)
    assert session is not None
    return session


@pytest.mark.parametrize("kind", KeyKind)
def test_a_token_says_whose_key_opened_the_session(sessions: ConsoleSessions, kind: KeyKind) -> None:
    session = read(sessions, sessions.open(kind, "abcdef123456"))
    assert (session.kind, session.key_id) == (kind, "abcdef123456")


def test_no_byte_of_a_token_can_be_changed(sessions: ConsoleSessions) -> None:
    token = sessions.open(KeyKind.TENANT, "abcdef123456")
    for at, char in enumerate(token):
        for other in {"0", "1", "a", "b", ".", "é"} - {char}:
            assert sessions.read(token[:at] + other + token[at + 1 :]) is None


def test_a_tenants_token_is_not_made_an_administrators(sessions: ConsoleSessions) -> None:
    token = sessions.open(KeyKind.TENANT, "abcdef123456")
    assert sessions.read(token.replace("tenant.", "admin.", 1)) is None


def test_another_pepper_knows_none_of_them(sessions: ConsoleSessions, clock: Clock) -> None:
    token = sessions.open(KeyKind.ADMIN, "abcdef123456")
    assert ConsoleSessions(b"another pepper, also of 32 bytes", clock).read(token) is None
    assert ConsoleSessions(PEPPER, clock).read(token) is not None


def test_a_session_lasts_its_time_and_no_longer(sessions: ConsoleSessions, clock: Clock) -> None:
    token = sessions.open(KeyKind.ADMIN, "abcdef123456")
    clock.at = NOON + LIFETIME - timedelta(seconds=1)
    assert sessions.read(token) is not None
    clock.at = NOON + LIFETIME
    assert sessions.read(token) is None
    clock.at = NOON - timedelta(hours=1)
    assert sessions.read(token) is None


def test_each_session_has_a_token_for_forms_of_its_own(sessions: ConsoleSessions) -> None:
    one, other = (read(sessions, sessions.open(KeyKind.ADMIN, "abcdef123456")) for _ in range(2))
    assert sessions.is_csrf_token(one, sessions.csrf_token(one))
    assert not sessions.is_csrf_token(one, sessions.csrf_token(other))
    assert not sessions.is_csrf_token(one, "")
    assert not sessions.is_csrf_token(one, "é")


def test_failures_of_an_address_count_for_a_while() -> None:
    now = [0.0]
    throttle = LoginThrottle(lambda: now[0])
    for second in range(MAX_FAILURES):
        assert throttle.wait_s("here") == 0
        now[0] = float(second)
        throttle.count_try("here")
    assert throttle.wait_s("here") == WINDOW_S - now[0]
    assert throttle.wait_s("there") == 0
    now[0] = WINDOW_S
    assert throttle.wait_s("here") == 0
    throttle.count_try("here")
    assert throttle.wait_s("here") > 0


def test_what_did_not_fail_is_forgotten() -> None:
    throttle = LoginThrottle(lambda: 0.0)
    for _ in range(2 * MAX_FAILURES):
        assert throttle.wait_s("here") == 0
        throttle.count_try("here")
        throttle.forget_try("here")
    throttle.forget_try("there")


def test_no_more_addresses_are_remembered_than_there_is_room_for() -> None:
    throttle = LoginThrottle(lambda: 0.0)
    for _ in range(MAX_FAILURES):
        throttle.count_try("first")
    for number in range(MAX_ADDRESSES):
        throttle.count_try(str(number))
    assert throttle.wait_s("first") == 0
