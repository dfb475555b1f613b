"""Typed text becomes what the API takes, or an error of the field."""

import pytest

from gateway.http.errors import APIError
from gateway.management.console.form_parsing import chosen, moment_of, naming, nanodollars_of, pairs_of, words_of


@pytest.mark.parametrize(
    ("text", "nanodollars"),
    [("25", 25 * 10**9), ("$12.50", 12_500_000_000), (" -0.000000001 ", -1), ("", None), ("  ", None)],
)
def test_dollars_are_exact(text: str, nanodollars: int | None) -> None:
    assert nanodollars_of("dollars", text) == nanodollars


@pytest.mark.parametrize("text", ["12,50", "1,000", "1e3", "0.0000000001", "$", "twelve", "$$1", "٣"])
def test_what_might_be_another_amount_is_none(text: str) -> None:
    with pytest.raises(APIError) as refused:
        nanodollars_of("dollars", text)
    assert (refused.value.status, refused.value.param) == (400, "dollars")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02T12:30", "2026-01-02T12:30:00Z"),
        ("2026-01-02T12:30:05", "2026-01-02T12:30:05Z"),
        ("2026-01-02T12:30:05.250", "2026-01-02T12:30:05.250Z"),
        ("2026-01-02T12:30:00+02:00", "2026-01-02T12:30:00+02:00"),
        ("tomorrow", "tomorrow"),
        ("", None),
    ],
)
def test_a_moment_without_a_zone_is_utc(text: str, moment: str | None) -> None:
    assert moment_of(text) == moment


def test_words_and_pairs() -> None:
    assert words_of(" a, b\nc,, ") == ["a", "b", "c"]
    assert words_of(" , ") is None
    assert pairs_of("aliases", "a = b\n\n c=d ", "=", "x = y") == [("a", "b"), ("c", "d")]
    for wrong in ("a", "a =", "= b"):
        with pytest.raises(APIError, match="x = y") as refused:
            pairs_of("aliases", wrong, "=", "x = y")
        assert refused.value.param == "aliases"


def test_an_error_is_of_the_field_that_was_typed_in() -> None:
    with pytest.raises(APIError) as renamed, naming(nanodollars="dollars"):
        raise APIError(409, "too much", param="nanodollars")
    assert renamed.value.param == "dollars"
    with pytest.raises(APIError) as found, chosen("key_not_found", "scope_id"):
        raise APIError(404, "no such key", code="key_not_found")
    assert (found.value.status, found.value.param) == (400, "scope_id")
    with pytest.raises(APIError) as other, chosen("key_not_found", "scope_id"):
        raise APIError(404, "no such tenant", code="tenant_not_found")
    assert other.value.status == 404
