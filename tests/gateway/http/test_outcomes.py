"""The availability objective counts every request under /v1/ once, by its outcome."""

import json

import httpx
import pytest

from engine.errors import GrammarGaveUp
from gateway.admission import Measure, Scope, StoreAway
from gateway.http.middleware import CLIENT_GONE, outcome_of
from gateway.http.request_state import RequestState
from gateway.telemetry.outcomes import RequestOutcome
from gateway.tenancy import ScopeKind
from tests.support.gateway import AUTHORISED, until

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("status", "error", "outcome"),
    [
        (200, None, RequestOutcome.ANSWERED),
        (404, "not_found", RequestOutcome.REFUSED),
        (429, "overloaded", RequestOutcome.TURNED_AWAY),
        (529, "overloaded", RequestOutcome.TURNED_AWAY),
        (503, "shutting_down", RequestOutcome.TURNED_AWAY),
        (200, "shutting_down", RequestOutcome.FAILED),
        (503, "service_unavailable", RequestOutcome.FAILED),
        (500, "internal_error", RequestOutcome.FAILED),
        (None, None, RequestOutcome.FAILED),
        (200, "engine_error", RequestOutcome.FAILED),
        (200, CLIENT_GONE, RequestOutcome.CLIENT_GONE),
        (499, CLIENT_GONE, RequestOutcome.CLIENT_GONE),
    ],
)
def test_an_exchange_has_one_outcome(status, error, outcome):
    assert outcome_of(RequestState("req_1", status=status, error=error)) is outcome


@pytest.mark.parametrize(
    ("status", "outcome"), [(400, RequestOutcome.REFUSED), (500, RequestOutcome.FAILED), (503, RequestOutcome.FAILED)]
)
def test_a_stream_that_breaks_has_the_outcome_of_its_last_event(status, outcome):
    assert outcome_of(RequestState("req_1", status=200, error="code", error_status=status)) is outcome


def counted(metrics) -> dict[str, float]:
    value = metrics.registry.get_sample_value
    counts = {each.value: value("turnpike_requests_total", {"outcome": each.value}) for each in RequestOutcome}
    return {name: count for name, count in counts.items() if count}


def test_requests_are_counted_by_outcome(client, engine, metrics, limiter, monkeypatch):
    assert counted(metrics) == {}
    client.post("/v1/chat/completions", json=CHAT)
    client.post("/v1/chat/completions", json=CHAT | {"temperature": 5})
    client.get("/v1/models", headers={"authorization": "Bearer no-key"})
    assert counted(metrics) == {"answered": 1, "refused": 2}
    engine.fail_at = 2
    assert client.post("/v1/chat/completions", json=CHAT | {"stream": True}).status_code == 200
    engine.fail_at = None

    async def away(*_: object, **__: object) -> None:
        raise StoreAway("away", Scope("acme", ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY))

    monkeypatch.setattr(limiter, "hold", away)
    refused = client.post("/v1/chat/completions", json=CHAT)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "service_unavailable"
    assert "tokens per day" in refused.json()["error"]["message"]
    assert refused.headers["retry-after"] == "5"
    assert counted(metrics) == {"answered": 1, "refused": 2, "failed": 2}


@pytest.mark.parametrize("stream", [False, True])
def test_a_grammar_that_gives_up_is_its_authors_error(client, engine, metrics, stream):
    engine.fail_at, engine.failure = 2, GrammarGaveUp("guided_regex", "guided_regex cannot be followed")
    answer = client.post("/v1/chat/completions", json=CHAT | {"guided_regex": "a+", "stream": stream})
    assert answer.status_code == (200 if stream else 400)
    told = answer.text.split("data: ")[-1] if stream else answer.text
    assert json.loads(told)["error"] == {
        "message": "guided_regex cannot be followed",
        "type": "invalid_request_error",
        "param": "guided_regex",
        "code": "invalid_value",
    }
    assert counted(metrics) == {"refused": 1}


def test_who_is_turned_away_has_not_met_a_failure(client, engine, metrics):
    engine.wait_ms = 10_000_000
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 429
    headers = {"anthropic-version": "2023-06-01"}
    assert client.post("/v1/messages", json=CHAT | {"max_tokens": 5}, headers=headers).status_code == 529
    assert counted(metrics) == {"turned_away": 2}


def test_keys_that_cannot_be_checked_are_our_failure(client, authenticator, metrics):
    authenticator.down = True
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 503
    assert counted(metrics) == {"failed": 1}


def test_what_operators_ask_is_no_request(client, metrics):
    for path in ("/healthz", "/readyz", "/metrics", "/favicon.ico"):
        client.get(path)
    assert counted(metrics) == {}


def test_a_client_that_hangs_up_has_not_met_a_failure(server, engine, metrics):
    engine.pace_s = 0.02
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=CHAT | {"stream": True}, headers=AUTHORISED
    ) as answer:
        next(answer.iter_lines())
    until(lambda: counted(metrics))
    assert counted(metrics) == {"client_gone": 1}
