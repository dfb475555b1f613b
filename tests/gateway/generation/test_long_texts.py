"""Long texts before limits are checked: one that cannot fit costs nothing. Counting tokens is a request, too."""

import asyncio
from dataclasses import replace

import pytest

from gateway.admission.book import limits_for
from gateway.admission.model import Measure
from gateway.http.bounds import MIN_TOKENIZED_BYTES
from gateway.tenancy.limits import Limits, ScopedLimits, ScopeKind
from tests.support.error_envelope import error_of
from tests.support.gateway import KEY

MESSAGE = {"role": "user", "content": "hi"}
COUNTING = [
    ("/v1/tokenize", {"model": "tiny", "prompt": "hi"}),
    ("/v1/tokenize", {"model": "tiny", "messages": [MESSAGE]}),
    ("/v1/detokenize", {"model": "tiny", "tokens": [104]}),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": [MESSAGE]}),
]
LONG = "x" * (MIN_TOKENIZED_BYTES - 1024)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "session_id": "s"}, "messages"),
        ("/v1/completions", {"prompt": LONG}, "prompt"),
        ("/v1/completions", {"prompt": ["a", LONG]}, "prompt"),
        ("/v1/responses", {"input": "hi", "instructions": LONG}, "input"),
    ],
)
def test_what_cannot_fit_is_refused_by_its_length(client, engine, path, body, param):
    refused = client.post(path, json={"model": "tiny"} | body)
    error = error_of(refused, 400)
    assert (error["param"], error["code"]) == (param, "context_length_exceeded")
    assert "512" in error["message"]
    assert engine.calls == []


def test_of_a_session_the_oldest_turns_go_as_ever_where_all_of_it_is_too_long(client, engine):
    for number in range(8):
        said = {"role": "user", "content": f"{number}" * 300}
        answer = client.post("/v1/chat/completions", json={"model": "tiny", "messages": [said], "session_id": "s"})
        assert answer.status_code == 200, answer.text
    assert int(answer.headers["x-turnpike-session-dropped-turns"]) > 0


def test_a_prompt_that_is_cut_to_length_is_tokenised_up_to_a_bound(client, engine):
    body = {"model": "tiny", "prompt": LONG[:100_000], "truncate_prompt_tokens": 10, "max_tokens": 1}
    assert client.post("/v1/completions", json=body).json()["usage"]["prompt_tokens"] == 10


@pytest.mark.parametrize(("path", "body"), COUNTING)
def test_who_only_counts_is_counted_as_a_request_and_as_no_tokens(client, authenticator, limiter, engine, path, body):
    principal = authenticator.principals[KEY]
    stated = ScopedLimits(ScopeKind.TENANT, "", Limits(requests_per_minute=2, tokens_per_minute=1000, concurrent=1))
    authenticator.principals[KEY] = replace(principal, limits=(stated,))
    first = client.post(path, json=body)
    assert first.status_code == 200, first.text
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert client.post(path, json=body).status_code == 200
    refused = client.post(path, json=body)
    assert (refused.status_code, refused.headers["x-ratelimit-remaining-requests"]) == (429, "0")
    states = asyncio.run(limiter.usage(limits_for(authenticator.principals[KEY], ("tiny",), 512, Limits()).quotas))
    used = {state.quota.scope.measure: (state.used, state.held) for state in states}
    assert used == {Measure.REQUESTS_PER_MINUTE: (2, 0), Measure.TOKENS_PER_MINUTE: (0, 0), Measure.CONCURRENT: (0, 0)}
    assert engine.calls == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/tokenize", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/tokenize", {"prompt": LONG}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/completions", {"prompt": LONG, "truncate_prompt_tokens": 10}),
    ],
)
def test_what_may_be_longer_than_the_window_is_bounded_in_bytes(client, monkeypatch, path, body):
    assert client.post(path, json={"model": "tiny"} | body).status_code == 200
    monkeypatch.setattr("gateway.generation.prompt_encoding.MIN_TOKENIZED_BYTES", len(LONG) // 2)
    refused = client.post(path, json={"model": "tiny"} | body)
    assert refused.status_code == 400
    assert str(len(LONG) // 2) in refused.json()["error"]["message"]
