"""Which names lead where."""

from dataclasses import replace

import pytest

from gateway.routing.names import ModelNames, Pair

NAMES = ModelNames(
    ("big", "small", "big-2", "huge", "tiny"),
    {"big": "small", "huge": "tiny"},
    {"big": {"big": 9, "big-2": 1}, "assistant": {"huge": 1}},
)
ALIASES = {"gpt-4o": "auto", "mine": "assistant", "small": "huge", "again": "gpt-4o", "gone": "x", "best": "auto:huge"}


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("big", "big"),
        ("assistant", "assistant"),
        ("auto", Pair("big", "small")),
        ("auto:big", Pair("big", "small")),
        ("auto:huge", Pair("huge", "tiny")),
        ("auto:tiny", None),
        ("auto:", None),
        ("nothing", None),
        ("gpt-4o", Pair("big", "small")),
        ("best", Pair("huge", "tiny")),
        ("mine", "assistant"),
        ("small", "small"),
        ("again", None),
        ("gone", None),
    ],
)
def test_a_name_leads_to(name: str, target: str | Pair | None) -> None:
    assert NAMES.find(name, ALIASES) == target


def test_aliases_of_all_tenants() -> None:
    names = replace(NAMES, aliases={"gpt-4o-mini": "small", "gpt-4o": "big", "best-of-all": "auto", "small": "big"})
    assert names.find("gpt-4o-mini", {}) == "small"
    assert names.find("best-of-all", {}) == Pair("big", "small")
    assert names.find("small", {}) == "small"
    assert names.find("gpt-4o", ALIASES) == Pair("big", "small"), "the tenant's own has priority"
    assert names.find("mine-too", {"mine-too": "gpt-4o-mini"}) is None, "aliases are not resolved recursively"
    listed = list(names.all_names({"mine": "big", "gpt-4o": "auto"}))
    assert listed == [*NAMES.all_names(()), "mine", "gpt-4o", "gpt-4o-mini", "best-of-all"]


def test_a_tenants_own_auto_goes_before_the_first_pair() -> None:
    assert NAMES.find("auto", {"auto": "auto:huge"}) == Pair("huge", "tiny")


def test_there_is_no_auto_without_a_pair() -> None:
    alone = ModelNames(("big",), {}, {})
    assert alone.find("auto", {}) is None
    assert list(alone.all_names(())) == ["big"]


def test_all_names_once() -> None:
    names = list(NAMES.all_names(ALIASES))
    assert names == [
        *("big", "small", "big-2", "huge", "tiny", "assistant", "auto", "auto:big", "auto:huge"),
        *("gpt-4o", "mine", "again", "gone", "best"),
    ]


def test_a_name_with_versions_has_the_small_model_of_the_one_that_has_one() -> None:
    assert (NAMES.smaller("big"), NAMES.smaller("assistant"), NAMES.smaller("big-2")) == ("small", "tiny", None)
    assert NAMES.version("tiny", "t") == "tiny"
    assert NAMES.version("assistant", "t") == "huge"
