"""Every way in which an answer of another server can end: the response, and one bill for what was delivered."""

import asyncio
import http.client
import json
import threading
from contextlib import closing

import pytest
from starlette.testclient import TestClient

from gateway.admission.model import Measure, Quota, Scope
from gateway.http.drain import Drain
from gateway.metering.event import Ending
from gateway.process.listener import bind
from gateway.process.server import Server
from gateway.tenancy.limits import ScopeKind
from tests.support.error_envelope import error_of
from tests.support.fake_upstream import (
    CUT,
    DONE,
    Reply,
    chat_chunk,
    chat_reply,
    error_reply,
    event,
    usage_chunk,
)
from tests.support.gateway import AUTHORISED, CHAT, HEADERS, limit, until
from tests.support.upstream_app import BIG, KEY_THERE
from tests.support.usage_events import cost, event_of, events_of

STREAMED = BIG | {"stream": True, "stream_options": {"include_usage": True}}
BEGUN = [chat_chunk({"role": "assistant", "content": ""}), chat_chunk("one"), chat_chunk(" two")]


def running(count: int) -> dict:
    return {"prompt_tokens": 7, "completion_tokens": count}


def last_error(response) -> dict:
    """The error event that ends a stream."""
    assert response.status_code == 200
    return json.loads(response.text.strip().splitlines()[-1].removeprefix("data: "))["error"]


@pytest.mark.parametrize(("status", "ours", "code"), [
    (400, 400, "invalid_value"),
    (422, 400, "invalid_value"),
    (413, 413, "invalid_value"),
    (401, 502, "upstream_misconfigured"),
    (403, 502, "upstream_misconfigured"),
    (404, 502, "upstream_misconfigured"),
    (301, 502, "upstream_misconfigured"),
    (429, 503, "upstream_overloaded"),
    (503, 503, "upstream_overloaded"),
    (500, 502, "upstream_error"),
    (504, 504, "upstream_timeout"),
])  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_costs_nothing(client, upstream, journal, status, ours, code, stream):
    upstream.reply = error_reply(status, f"no: {KEY_THERE}")
    response = client.post(CHAT, json=BIG | {"stream": stream})
    error = error_of(response, ours)
    assert error["code"] == code
    assert KEY_THERE not in response.text
    assert (response.headers.get("retry-after") is not None) == (ours == 503)
    event = event_of(journal)
    assert (event.finish_reason, event.cost_nanodollars, event.http_status) == (Ending.ERROR, 0, ours)


def test_the_operators_log_has_the_reason(client, upstream, caplog):
    upstream.reply = error_reply(404, "no model there")
    client.post(CHAT, json=BIG)
    assert "upstream big gives no answer: status 404" in caplog.text
    assert "no model there" in caplog.text


def test_a_refused_request_has_the_servers_own_message(client, upstream):
    upstream.reply = error_reply(400, "temperature must be at most 2")
    assert error_of(client.post(CHAT, json=BIG), 400)["message"] == "temperature must be at most 2"


def test_a_prompt_over_the_servers_window_has_the_usual_code(client, upstream):
    upstream.reply = error_reply(400, "This model's maximum context length is 8 tokens. However, you requested 9.")
    assert error_of(client.post(CHAT, json=BIG), 400)["code"] == "context_length_exceeded"


def test_the_wait_that_the_server_states_reaches_the_client_and_holds_for_others(client, upstream):
    upstream.reply = error_reply(429, retry_after="7")
    assert error_of(client.post(CHAT, json=BIG), 503)["code"] == "upstream_overloaded"
    asked = len(upstream.received)
    response = client.post(CHAT, json=BIG)
    assert error_of(response, 503)["code"] == "model_unavailable"
    assert 5 <= int(response.headers["retry-after"]) <= 7
    assert len(upstream.received) == asked, "nothing is sent until then"


def test_a_server_that_is_not_there(client, big, upstream, journal):
    big.model._stated.__dict__["url"] = "http://127.0.0.1:9/v1"
    assert error_of(client.post(CHAT, json=BIG), 502)["code"] == "upstream_unreachable"
    assert event_of(journal).cost_nanodollars == 0


@pytest.mark.parametrize("parts", [[30.0], [b": wait\n\n", 30.0]], ids=["no byte", "a comment"])
def test_a_server_that_is_silent(big, upstream, journal, parts):
    big.stated |= {"first_byte_timeout_s": 0.2, "read_timeout_s": 0.2}
    upstream.reply = Reply(parts)
    with TestClient(big.build(), headers=AUTHORISED) as client:
        response = client.post(CHAT, json=BIG)
    assert response.status_code in (502, 504)
    assert event_of(journal).cost_nanodollars == 0


@pytest.mark.parametrize("end", [
    [CUT],
    [DONE],
    [event({"error": {"message": "at /srv", "code": 500}}), DONE],
    [chat_chunk("", "abort")],
    [b"data: {oops\n\n"],
])  # fmt: skip
def test_an_answer_that_breaks_off_is_billed_as_far_as_it_was_sent(client, upstream, journal, end):
    upstream.reply = Reply([*BEGUN, 0.05, *end])
    error = last_error(client.post(CHAT, json=STREAMED))
    assert error["code"].startswith("upstream_")
    assert "/srv" not in error["message"]
    found = event_of(journal)
    assert (found.finish_reason, found.completion_tokens) == (Ending.ERROR, 2)
    assert found.prompt_tokens > 0
    assert found.cost_nanodollars == cost(found)


@pytest.mark.parametrize("end", [[CUT], [DONE]])
def test_a_whole_answer_that_breaks_off_costs_nothing(client, upstream, journal, end):
    upstream.reply = Reply([*BEGUN, *end])
    error_of(client.post(CHAT, json=BIG), 502)
    assert event_of(journal).cost_nanodollars == 0


def test_an_answer_without_usage_is_estimated_and_flagged(client, upstream, journal, big):
    upstream.reply = chat_reply("one", " two", usage=None)
    assert client.post(CHAT, json=BIG).json()["usage"]["estimated"] is True
    event = event_of(journal)
    assert (event.completion_tokens, event.estimated) == (2, True)
    metrics = client.get("/metrics").text
    assert 'turnpike_upstream_estimated_answers_total{gen_ai_request_model="big"} 1.0' in metrics


@pytest.mark.parametrize(("usage", "estimated"), [(None, True), (running(1), False)])
def test_a_stream_that_breaks_off_is_flagged_unless_its_usage_was_reported(client, upstream, journal, usage, estimated):
    upstream.reply = Reply([chat_chunk("one", usage=usage), CUT])
    with client.stream("POST", CHAT, json=BIG | {"stream": True}) as response:
        assert b"one" in response.read()
    event = event_of(journal)
    assert (event.completion_tokens, event.estimated) == (1, estimated)


def test_usage_that_comes_at_the_end_is_no_estimate(client, upstream, journal):
    upstream.reply = chat_reply("one", " two")
    answer = client.post(CHAT, json=BIG).json()
    assert "estimated" not in answer["usage"]
    assert not event_of(journal).estimated


@pytest.mark.parametrize(("end", "completion_tokens"), [
    ([usage_chunk()], 3),
    ([usage_chunk(), CUT], 3),
    ([usage_chunk(), 60.0], 3),
    ([CUT], 2),
    ([], 2),
])  # fmt: skip
def test_an_answer_whose_connection_breaks_after_its_end_is_whole(client, upstream, journal, end, completion_tokens):
    upstream.reply = Reply([*BEGUN, chat_chunk({}, "stop"), 0.01, *end])
    assert client.post(CHAT, json=BIG).status_code == 200
    assert event_of(journal).completion_tokens == completion_tokens


def test_usage_without_the_answers_tokens_is_none(client, upstream, journal):
    upstream.reply = Reply([*BEGUN, chat_chunk({}, "stop"), usage_chunk({"prompt_tokens": 7}), DONE])
    assert client.post(CHAT, json=BIG).json()["usage"]["estimated"] is True
    assert event_of(journal).completion_tokens == 2


def test_connections_are_used_again(client, upstream):
    for stream in (False, True, False):
        assert client.post(CHAT, json=BIG | {"stream": stream}).status_code == 200
    assert upstream.connections <= 2, "one of them is the health check's"


def test_a_reported_zero_is_no_reason_to_estimate(client, upstream, journal):
    upstream.reply = Reply([chat_chunk({}, "stop"), usage_chunk({"prompt_tokens": 7, "completion_tokens": 0}), DONE])
    assert client.post(CHAT, json=BIG).status_code == 200
    assert (event_of(journal).prompt_tokens, event_of(journal).completion_tokens) == (7, 0)


def test_a_client_that_hangs_up_closes_the_connection_and_pays_once(server, upstream, journal, limiter, big):
    upstream.reply = Reply([
        *(chat_chunk(text, usage=running(count)) for count, text in enumerate(("one", " two", " three"), 1)),
        60.0,
        chat_chunk(" four", "stop"),
    ])  # fmt: skip
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("POST", CHAT, json.dumps(STREAMED), HEADERS)
        response, seen = connection.getresponse(), b""
        while b"three" not in seen:
            seen += response.read1()
    until(lambda: upstream.hung_up == 1)
    found = event_of(journal)
    assert (found.finish_reason, found.prompt_tokens, found.completion_tokens) == (Ending.CANCELLED, 7, 3)
    assert found.cost_nanodollars == cost(found)
    until(lambda: limiter.counts()["open"] == 0)
    assert len(events_of(journal)) == 1
    assert big.model.load.in_flight == 0


def test_a_client_that_hangs_up_before_the_first_token_is_not_billed(server, upstream, journal):
    upstream.reply = Reply([60.0])
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("POST", CHAT, json.dumps(STREAMED), HEADERS)
        until(lambda: upstream.live)
    until(lambda: upstream.hung_up == 1)
    assert (event_of(journal).finish_reason, event_of(journal).cost_nanodollars) == (Ending.CANCELLED, 0)


@pytest.mark.parametrize("reports", [True, False])
def test_a_budget_ends_a_stream_of_a_server_that_goes_on(client, upstream, journal, authenticator, big, reports):
    """The server gets the limit, ignores it, and its connection is closed."""
    limit(authenticator, tokens_per_day=25)
    words = [chat_chunk("word", usage=running(count) if reports else None) for count in range(1, 200)]
    upstream.reply = Reply([part for word in words for part in (word, 0.002)])
    response = client.post(CHAT, json=STREAMED)
    (body,) = upstream.bodies
    granted = body["max_tokens"]
    assert granted < 25
    until(lambda: upstream.hung_up == 1)
    found = event_of(journal)
    assert (found.finish_reason, found.completion_tokens) == (Ending.QUOTA, granted)
    usage = json.loads(response.text.strip().splitlines()[-3].removeprefix("data: "))["usage"]
    assert usage["completion_tokens"] == granted
    assert usage["limited_by"] == {"scope": "tenant", "limit": "tokens_per_day"}
    assert response.text.count("word") == granted


def test_a_large_last_chunk_costs_no_more_than_the_limit(client, upstream, journal):
    upstream.reply = Reply([chat_chunk("a" * 400, usage=running(100)), chat_chunk("b", "stop")])
    answer = client.post(CHAT, json=BIG | {"max_tokens": 4}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert event_of(journal).completion_tokens == 4


def test_a_large_chunk_before_a_failure_costs_no_more_than_the_limit(client, upstream, journal):
    upstream.reply = Reply([chat_chunk("a" * 400, usage=running(100)), 0.05, CUT])
    client.post(CHAT, json=STREAMED | {"max_tokens": 4})
    assert (event_of(journal).finish_reason, event_of(journal).completion_tokens) == (Ending.ERROR, 4)


def test_chunks_that_share_the_usage_of_a_token_are_all_delivered(client, upstream, journal):
    """A server may send reasoning, text and the role of one token in a chunk each, all with the usage of that token."""
    parts = [chat_chunk(delta, usage=running(1)) for delta in ({"role": "assistant", "content": ""}, "a", "b")]
    upstream.reply = Reply([*parts, chat_chunk({}, "length", usage=running(1)), usage_chunk(), DONE])
    answer = client.post(CHAT, json=BIG | {"max_tokens": 1}).json()
    assert answer["choices"][0]["message"]["content"] == "ab"
    assert (event_of(journal).completion_tokens, event_of(journal).cached_tokens) == (1, 2)


def test_an_estimate_ends_no_answer_of_a_server_that_counts_itself(client, upstream, journal):
    """Long tokens look like more of them than there are."""
    upstream.reply = chat_reply("internationalisation", "internationalisation", finish="length")
    answer = client.post(CHAT, json=BIG | {"max_tokens": 3}).json()
    assert answer["choices"][0]["message"]["content"] == 2 * "internationalisation"
    assert event_of(journal).completion_tokens == 3


def test_tokens_of_a_lost_answer_count_against_limits(client, upstream, authenticator, limiter):
    limit(authenticator, tokens_per_day=10_000)
    upstream.reply = Reply([chat_chunk("one", usage=running(40)), 0.05, CUT])
    client.post(CHAT, json=STREAMED)
    quota = Quota(Scope("tenant-1", ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY), 10_000)
    (state,) = asyncio.run(limiter.usage([quota]))
    assert (state.used, state.held) == (47, 0)


def test_the_shutdown_of_the_gateway_ends_the_connection(app, upstream, journal, big):
    """A stream that runs at the deadline gets an error event, and is billed as far as it was sent."""
    upstream.reply = Reply([chat_chunk("one", usage=running(1)), 60.0])
    with closing(bind("127.0.0.1", 0)) as listener:
        server = Server(app, Drain(), delay_s=0, deadline_s=0.2, on_ready=lambda: None)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: server.started)
        with closing(http.client.HTTPConnection(*listener.getsockname(), timeout=30)) as connection:
            connection.request("POST", CHAT, json.dumps(STREAMED), HEADERS)
            response = connection.getresponse()
            server.should_exit = True
            text = response.read().decode()
        thread.join(20)
    assert "shutting_down" in text
    until(lambda: upstream.hung_up == 1)
    assert (event_of(journal).finish_reason, event_of(journal).completion_tokens) == (Ending.INTERRUPTED, 1)
    assert big.model.load.in_flight == 0


def test_health_names_the_state_of_the_server(client, big):
    assert client.get("/health").json() == {"status": "ok", "upstreams": {"big": "up"}}
