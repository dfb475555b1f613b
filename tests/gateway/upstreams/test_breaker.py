"""The circuit breaker, retries before the first byte, and the model that answers instead."""

import pytest
from starlette.testclient import TestClient

from gateway.tenancy.policies import Preference
from gateway.upstreams.breaker import FAILURES, FIRST_PAUSE_S, MAX_PAUSE_S, BreakerState, RetryBudget, UpstreamBreaker
from tests.support.error_envelope import error_of
from tests.support.fake_upstream import CUT, Reply, chat_chunk, chat_reply, error_reply
from tests.support.gateway import AUTHORISED, CHAT, allow, until
from tests.support.upstream_app import BIG
from tests.support.usage_events import event_of, events_of


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock) -> UpstreamBreaker:
    return UpstreamBreaker(clock)


def fail(breaker: UpstreamBreaker, times: int = FAILURES) -> None:
    for _ in range(times):
        breaker.on_failure()


def test_it_opens_after_failures_in_a_row(breaker):
    fail(breaker, FAILURES - 1)
    breaker.on_success()
    fail(breaker, FAILURES - 1)
    assert (breaker.state, breaker.retry_after_s) == (BreakerState.CLOSED, None)
    breaker.on_failure()
    assert (breaker.state, breaker.retry_after_s) == (BreakerState.OPEN, FIRST_PAUSE_S)
    assert breaker.opened_total == 1


def test_one_request_decides_after_the_pause(breaker, clock):
    fail(breaker)
    clock.now_s += FIRST_PAUSE_S
    assert (breaker.state, breaker.retry_after_s) == (BreakerState.HALF_OPEN, None)
    assert breaker.begin()
    assert breaker.retry_after_s is not None, "one at a time"
    breaker.on_success()
    breaker.end_trial()
    assert breaker.state is BreakerState.CLOSED
    assert not breaker.begin()


def test_the_pause_doubles_while_the_server_stays_away(breaker, clock):
    fail(breaker)
    pauses = []
    for _ in range(8):
        clock.now_s += breaker.retry_after_s
        assert breaker.begin()
        breaker.on_failure()
        breaker.end_trial()
        pauses.append(breaker.retry_after_s)
    assert pauses[:3] == [2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S


def test_a_trial_that_its_client_gives_up_decides_nothing(breaker, clock):
    fail(breaker)
    clock.now_s += FIRST_PAUSE_S
    assert breaker.begin()
    breaker.end_trial()
    assert (breaker.state, breaker.retry_after_s) == (BreakerState.HALF_OPEN, None)


def test_a_health_check_ends_the_pause(breaker):
    fail(breaker)
    breaker.on_probe(succeeded=True)
    assert breaker.state is BreakerState.HALF_OPEN


def test_failed_health_checks_open_it(breaker):
    for _ in range(FAILURES):
        breaker.on_probe(succeeded=False)
    assert breaker.state is BreakerState.OPEN


def test_retries_are_a_tenth_of_the_requests():
    budget = RetryBudget()
    taken = 0
    for _ in range(1000):
        budget.on_request()
        taken += budget.take()
    assert 95 <= taken <= 105


def test_a_failure_before_the_first_byte_is_tried_once_more(client, upstream, journal):
    upstream.replies.append(error_reply(500))
    assert client.post(CHAT, json=BIG).status_code == 200
    assert len(upstream.received) == 2
    assert len(events_of(journal)) == 1
    assert 'turnpike_upstream_retries_total{gen_ai_request_model="big"} 1.0' in client.get("/metrics").text


def test_a_connection_that_breaks_before_the_first_byte_is_tried_once_more(client, upstream):
    upstream.replies.append(Reply([CUT]))
    assert client.post(CHAT, json=BIG).status_code == 200
    assert len(upstream.received) == 2


@pytest.mark.parametrize("reply", [error_reply(400), error_reply(401), Reply([chat_chunk("one"), 0.05, CUT])])
def test_nothing_else_is_tried_again(client, upstream, reply):
    upstream.reply = reply
    client.post(CHAT, json=BIG)
    assert len(upstream.received) == 1


def test_a_server_that_fails_is_left_alone(client, upstream, big):
    upstream.reply = error_reply(500)
    while big.model.breaker.state is BreakerState.CLOSED:
        error_of(client.post(CHAT, json=BIG), 502)
    asked = len(upstream.received)
    assert asked <= FAILURES
    response = client.post(CHAT, json=BIG)
    assert error_of(response, 503)["code"] == "model_unavailable"
    assert int(response.headers["retry-after"]) >= 1
    assert len(upstream.received) == asked
    assert client.get("/health").json() == {"status": "ok", "upstreams": {"big": "down"}}
    assert client.get("/readyz").status_code == 200, "other models are served"
    assert 'turnpike_upstream_up{gen_ai_request_model="big"} 0.0' in client.get("/metrics").text


def test_it_is_back_after_one_good_request(client, upstream, big):
    upstream.reply = error_reply(500)
    while big.model.breaker.state is BreakerState.CLOSED:
        client.post(CHAT, json=BIG)
    upstream.reply = chat_reply("back")
    until(lambda: big.model.breaker.state is BreakerState.HALF_OPEN)
    assert client.post(CHAT, json=BIG).status_code == 200
    assert big.model.breaker.state is BreakerState.CLOSED


def paired(big, authenticator, **policy) -> TestClient:
    """`tiny`, of this process, replaces `big` where it is overloaded."""
    big.settings["small_models"] = {"big": "tiny"}
    allow(authenticator, **policy)
    return TestClient(big.build(), headers=AUTHORISED)


@pytest.mark.parametrize("reply", [error_reply(500), error_reply(429), Reply([CUT])], ids=["500", "429", "cut"])
def test_the_small_model_answers_if_the_server_gives_no_answer(big, authenticator, upstream, journal, limiter, reply):
    upstream.reply = reply
    with paired(big, authenticator, degrade=True) as client:
        response = client.post(CHAT, json=BIG)
    assert response.status_code == 200
    assert response.json()["model"] == "tiny"
    assert response.json()["choices"][0]["message"]["content"] == "Hello, world!"
    assert response.headers["x-turnpike-served-model"] == "tiny"
    event = event_of(journal)
    assert (event.requested_model, event.served_model, event.route_reason) == ("big", "tiny", "saturated")
    assert event.completion_tokens == len("Hello, world!")
    assert limiter.counts()["open"] == 0


@pytest.mark.parametrize(("path", "body"), [
    (CHAT, BIG | {"stream": True}),
    ("/v1/messages", BIG | {"stream": True, "max_tokens": 50}),
    ("/v1/messages", BIG | {"max_tokens": 50}),
    ("/v1/responses", {"model": "big", "input": "hi", "stream": True}),
    ("/v1/responses", {"model": "big", "input": "hi"}),
    ("/v1/completions", {"model": "big", "prompt": ["hi", "ho"], "max_tokens": 50}),
])  # fmt: skip
def test_so_it_does_in_every_format(big, authenticator, upstream, journal, path, body):
    upstream.reply = error_reply(500)
    with paired(big, authenticator, degrade=True) as client:
        response = client.post(path, json=body)
    assert response.status_code == 200, response.text
    assert "upstream_" not in response.text
    event = event_of(journal)
    assert (event.served_model, event.http_status) == ("tiny", 200)
    assert event.completion_tokens == len("Hello, world!") * (2 if path == "/v1/completions" else 1)


def test_the_small_model_answers_while_the_breaker_is_open(big, authenticator, upstream, journal):
    with paired(big, authenticator, degrade=True) as client:
        until(lambda: big.model.max_model_len == 4096)  # the first health check has ended
        fail(big.model.breaker)
        assert client.post(CHAT, json=BIG).json()["model"] == "tiny"
    assert not upstream.received
    assert event_of(journal).served_model == "tiny"


def test_no_other_model_answers_without_the_tenants_leave(big, authenticator, upstream):
    upstream.reply = error_reply(500)
    with paired(big, authenticator, degrade=False) as client:
        error_of(client.post(CHAT, json=BIG), 502)


def test_nothing_is_answered_twice(big, authenticator, upstream, journal):
    """Once the client has a part of the answer, no other model begins one."""
    upstream.reply = Reply([chat_chunk("one"), 0.05, CUT])
    with paired(big, authenticator, degrade=True) as client:
        response = client.post(CHAT, json=BIG | {"stream": True})
    assert "upstream_connection_lost" in response.text
    assert "Hello, world!" not in response.text
    assert event_of(journal).served_model == "big"


def test_a_local_model_is_replaced_by_an_upstream(big, authenticator, engine, upstream, journal):
    """`auto` names both; a question for the small one goes to the server."""
    big.settings["small_models"] = {"tiny": "big"}
    allow(authenticator, preference=Preference.ECONOMY)
    with TestClient(big.build(), headers=AUTHORISED) as client:
        easy = client.post(CHAT, json=BIG | {"model": "auto"}).json()
    assert easy["model"] == "big"
    assert event_of(journal).route_reason == "complexity_small"


def test_a_cascade_has_an_upstreams_answer_judged(big, authenticator, engine, upstream, journal):
    big.settings["small_models"] = {"tiny": "big"}
    allow(authenticator, cascade_percent=50)
    with TestClient(big.build(), headers=AUTHORISED) as client:
        answer = client.post(CHAT, json=BIG | {"model": "auto"}).json()
    assert upstream.bodies[0]["logprobs"] is True
    assert answer["model"] == "tiny", "an answer without log-probabilities inspires no confidence"
    assert event_of(journal).route_reason == "cascade_escalated"
