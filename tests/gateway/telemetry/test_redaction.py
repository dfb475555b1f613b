"""The plain searches before the patterns let no secret pass."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.redaction import _BEARER, REDACTED, Redactor, without_secret_fields

SECRETS = ("hunter2hunter2", "pass.word", "ſecret-ſecret")
WORDS = st.sampled_from(
    (*SECRETS, "Bearer ", "bEARER  ", "basic ", "BAſIC ", "a" * 16, "A1b2" * 5, "x", " ", "\n", "é", "://u:p@h", "K")
)


@given(st.lists(WORDS, max_size=8).map("".join))
def test_no_secret_is_left(text: str) -> None:
    redacted = Redactor(SECRETS).text(text)
    assert not any(secret in redacted for secret in SECRETS)
    assert _BEARER.sub(rf"\1 {REDACTED}", redacted) == redacted or REDACTED in redacted


@given(st.lists(WORDS, max_size=8).map("".join))
def test_bearers_are_found_as_the_pattern_finds_them(text: str) -> None:
    if "://" not in text:
        assert Redactor().text(text) == _BEARER.sub(rf"\1 {REDACTED}", text)


@pytest.mark.parametrize("value", ["s", 1, 1.5, True, None, [1], ("a",)])
def test_other_values_are_kept(value: object) -> None:
    assert without_secret_fields({"name": value, "within": {"name": value, "Key": "k"}}) == {
        "name": value,
        "within": {"name": value, "Key": REDACTED},
    }
