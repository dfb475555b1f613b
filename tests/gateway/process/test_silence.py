"""When a gateway process counts as hung."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.process.silence import CHECK_SECONDS, HEARTBEAT_SECONDS, Silence

LIMIT = 5

_events = st.lists(st.sampled_from(["heard", "check"]), max_size=200)


@given(_events)
def test_hung_after_as_many_silent_checks_as_the_limit_has(events: list[str]) -> None:
    """The definition: the last heartbeat, or the beginning, came before the last `LIMIT + 1` checks."""
    silence = Silence(LIMIT * CHECK_SECONDS)
    since = 0
    """Checks since the last heartbeat, or since the beginning, which counts as one."""
    for event in events:
        if event == "heard":
            silence.heard()
            since = 0
        else:
            since += 1
            assert silence.check() == (since > LIMIT)


@given(st.integers(1, 400), st.integers(1, 10_000))
def test_a_process_that_sends_is_never_hung(checks: int, limit_ms: int) -> None:
    silence = Silence(limit_ms / 1000)
    assert HEARTBEAT_SECONDS < CHECK_SECONDS, "there is one between two checks"
    for _ in range(checks):
        silence.heard()
        assert not silence.check()


def test_a_supervisor_that_was_stopped_counts_one_check() -> None:
    """However long: one sleep of it has ended, and what was sent has not been read yet."""
    silence = Silence(2 * CHECK_SECONDS)
    silence.heard()
    assert not silence.check()
    assert not silence.check()
    silence.heard()
    assert not silence.check()
