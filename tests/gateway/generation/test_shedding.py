"""A saturated server turns requests away at once, standard ones first."""

import pytest

from tests.support.error_envelope import error_of
from tests.support.gateway import BODY, KEY, PREMIUM_KEY


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


@pytest.mark.parametrize(("wait_ms", "served"), [(0, True), (4_000, True), (4_001, False), (30_001, False)])
def test_premiums_bound_follows_its_target(client, engine, wait_ms, served):
    """With a margin: who is let in is to be served within 5 s, ten times the target."""
    engine.wait_ms = wait_ms
    assert (ask(client, PREMIUM_KEY).status_code == 200) == served


def test_what_is_shed_holds_nothing(client, engine, limiter):
    engine.wait_ms = 31_000
    assert ask(client).status_code == 429
    assert limiter.counts()["admitted"] == 0


def test_nobody_is_sent_away_from_an_empty_line(client, engine):
    """A long prompt alone may take longer than the bound, today as tomorrow."""
    engine.wait_ms, engine.drain_ms = 60_000, 0
    assert ask(client).status_code == 200


def test_what_a_full_server_turns_away_is_not_tokenised(client, engine):
    """Neither the time of its tokens is spent, nor is the template's word about it heard."""
    engine.wait_ms = 42_000
    body = BODY | {"messages": [{"role": "user", "content": "TEMPLATE-REFUSES"}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 429
    engine.wait_ms = 0
    assert client.post("/v1/chat/completions", json=body).status_code == 400


def test_a_prompt_that_is_too_long_for_the_line_is_turned_away(client, engine):
    engine.wait_ms, engine.wait_ms_per_token = 20_000, 1_000
    assert ask(client).status_code == 429
    engine.wait_ms_per_token = 0
    assert ask(client).status_code == 200
