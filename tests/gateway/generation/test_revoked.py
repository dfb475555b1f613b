"""A key that is revoked while its request runs: the request ends, and is billed to the token that was sent."""

import http.client
import json
from contextlib import closing

import pytest

from gateway.metering.event import Ending
from gateway.tenancy.errors import InvalidKey, TenantSuspended
from tests.support.gateway import BODY, CHAT, HEADERS, until
from tests.support.usage_events import event_of

KEY_ID = "pubid1"


def asked(server, **fields) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", CHAT, json.dumps(BODY | fields), HEADERS)
    return connection


@pytest.mark.parametrize(
    ("reason", "code"), [(InvalidKey("revoked API key"), "invalid_api_key"), (TenantSuspended("suspended"), None)]
)
def test_a_stream_ends_with_an_event_that_says_so(server, journal, engine, limiter, authenticator, reason, code):
    engine.pace_s = 0.1
    with closing(asked(server, stream=True, stream_options={"include_usage": True}, max_tokens=400)) as connection:
        answer = connection.getresponse()
        first = answer.readline()
        authenticator.ended[KEY_ID] = reason
        events = [line[6:] for line in (first + answer.read()).split(b"\n") if line.startswith(b"data: ")]
    error = json.loads(events[-1])["error"]
    assert code in (error["code"], None)
    sent = sum(bool(choice["delta"].get("content")) for each in events[:-1] for choice in json.loads(each)["choices"])
    event = event_of(journal)
    assert event.finish_reason == Ending.ERROR
    assert 0 < event.completion_tokens == sent < 400
    until(lambda: limiter.counts()["open"] == 0)
    assert not engine.live


def test_an_answer_as_a_whole_is_the_refusal_and_costs_nothing(server, journal, engine, authenticator):
    engine.pace_s = 3600.0
    with closing(asked(server)) as connection:
        until(lambda: engine.live)
        authenticator.ended[KEY_ID] = InvalidKey("revoked API key")
        answer = connection.getresponse()
        body = json.loads(answer.read())
    assert (answer.status, body["error"]["code"]) == (401, "invalid_api_key")
    event = event_of(journal)
    assert (event.cost_nanodollars, event.http_status) == (0, 401)
    until(lambda: not engine.live)


def test_another_keys_requests_go_on(server, journal, engine, authenticator):
    engine.pace_s = 0.2
    authenticator.ended["another"] = InvalidKey("revoked API key")
    with closing(asked(server, stream=True)) as connection:
        assert connection.getresponse().read().endswith(b"data: [DONE]\n\n")
    assert event_of(journal).finish_reason != Ending.ERROR
