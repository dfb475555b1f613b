"""Versions of a model: each client keeps its own, and the shares of all match the weights."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.versions import version_of

CANARY = {"m": 95.0, "m-canary": 5.0}
PEOPLE = [f"tenant-{i}" for i in range(20_000)]


@given(st.text())
def test_whoever_asks_again_gets_the_same(who: str) -> None:
    assert version_of(CANARY, who) == version_of(dict(reversed(CANARY.items())), who)


@pytest.mark.parametrize("weights", [CANARY, {"a": 1, "b": 1}, {"a": 0.2, "b": 0.3, "c": 0.5}])
def test_each_version_has_its_share(weights: dict[str, float]) -> None:
    got = Counter(version_of(weights, who) for who in PEOPLE)
    for version, weight in weights.items():
        share = weight / sum(weights.values())
        deviation = (share * (1 - share) / len(PEOPLE)) ** 0.5
        assert abs(got[version] / len(PEOPLE) - share) < 4 * deviation


def test_nobody_gets_a_version_of_no_weight() -> None:
    assert {version_of({"old": 0, "new": 1e-9}, who) for who in PEOPLE[:1000]} == {"new"}


def test_more_weight_moves_people_one_way_only() -> None:
    before = {who: version_of(CANARY, who) for who in PEOPLE}
    after = {who: version_of(CANARY | {"m-canary": 20.0}, who) for who in PEOPLE}
    moved = {(before[who], after[who]) for who in PEOPLE if before[who] != after[who]}
    assert moved == {("m", "m-canary")}
