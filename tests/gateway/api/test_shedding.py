"""A saturated server turns requests away at once, standard ones first."""

import pytest

from gateway.tenancy.records import Tier
from tests.gateway.api.conftest import KEY, PREMIUM_KEY
from tests.gateway.api.envelope import error_of

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def ask(client, key=KEY):
    return client.post("/v1/chat/completions", json=BODY, headers={"authorization": f"Bearer {key}"})


def test_a_wait_past_the_bound_is_refused_with_the_time_to_come_back(client, engine):
    engine.wait_ms = 42_000
    refused = ask(client)
    error = error_of(refused, 429)
    assert error["code"] == "overloaded"
    assert error["limit"] == {"scope": "class", "name": "standard", "limit": 30_000}
    assert 42_000 <= int(refused.headers["retry-after-ms"]) <= 52_500
    assert 42 <= int(refused.headers["retry-after"]) <= 53
    assert not engine.calls


@pytest.mark.parametrize(("wait_ms", "served"), [(0, True), (5_000, True), (5_001, False), (30_001, False)])
def test_premiums_bound_follows_its_target(client, engine, wait_ms, served):
    engine.wait_ms = wait_ms
    assert (ask(client, PREMIUM_KEY).status_code == 200) == served


def test_what_is_shed_holds_nothing(client, engine, limiter):
    engine.wait_ms = 31_000
    assert ask(client).status_code == 429
    assert limiter.counts()["admitted"] == 0


def test_every_tier_has_a_bound():
    from gateway.api.service_classes import wait_bound_ms

    assert all(wait_bound_ms(tier, 30_000) > 0 for tier in Tier)
