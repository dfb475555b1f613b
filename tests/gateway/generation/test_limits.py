"""Limits as a client meets them: headers, refusals, and answers that end where a limit does."""

import asyncio

import httpx
import orjson
import pytest
from starlette.testclient import TestClient

from engine.request import BATCH, PREMIUM, STANDARD
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.http.rate_headers import duration
from gateway.tenancy.limits import ScopeKind
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, BODY, CHAT, KEY, PREMIUM_KEY, PROMPT_TOKENS, limit
from tests.support.services import services_with


def ask(client, **fields):
    return client.post(CHAT, json=BODY | fields)


def test_without_limits_there_are_no_headers(client):
    assert not [name for name in ask(client).headers if name.startswith("x-ratelimit")]


def test_headers_say_what_is_left(client, authenticator):
    limit(authenticator, requests_per_minute=3, tokens_per_minute=1000)
    first = ask(client, max_tokens=5)
    assert first.json()["usage"]["prompt_tokens"] == PROMPT_TOKENS
    assert first.headers["x-ratelimit-limit-requests"] == "3"
    assert first.headers["x-ratelimit-remaining-requests"] == "2"
    assert first.headers["x-ratelimit-limit-tokens"] == "1000"
    assert first.headers["x-ratelimit-remaining-tokens"] == str(1000 - PROMPT_TOKENS - 5)
    assert first.headers["x-ratelimit-reset-requests"].endswith("s")
    streamed = ask(client, max_tokens=5, stream=True)
    assert streamed.headers["x-ratelimit-remaining-requests"] == "1"


def test_a_refusal_says_which_limit_and_when(client, authenticator, engine):
    limit(authenticator, requests_per_minute=1)
    assert ask(client).status_code == 200
    refused = ask(client)
    error = error_of(refused, 429)
    assert error["code"] == "rate_limit_exceeded"
    assert error["limit"] == {"scope": "tenant", "name": "requests_per_minute", "limit": 1}
    assert 1 <= int(refused.headers["retry-after"]) <= 66
    assert 0 < int(refused.headers["retry-after-ms"]) <= 66_000
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert len(engine.calls) == 1


@pytest.mark.parametrize(("kind", "scope_id"), [(ScopeKind.KEY, "pubid1"), (ScopeKind.MODEL, "tiny")])
def test_limits_of_a_key_and_of_a_model(client, authenticator, kind, scope_id):
    limit(authenticator, kind, scope_id, requests_per_minute=1)
    assert ask(client).status_code == 200
    assert error_of(ask(client), 429)["limit"]["scope"] == kind.value
    if kind is ScopeKind.MODEL:
        assert ask(client, model="org/tiny-2").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_at_the_token_where_the_limit_does(client, authenticator, engine, stream):
    engine.reply = "a" * 100
    limit(authenticator, tokens_per_minute=PROMPT_TOKENS + 7)
    response = ask(client, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
    assert response.status_code == 200
    if stream:
        events = [orjson.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        usage = events[-1]["usage"]
        text = "".join(e["choices"][0]["delta"].get("content", "") for e in events if e["choices"])
        reason = next(e["choices"][0]["finish_reason"] for e in reversed(events) if e["choices"])
    else:
        usage = response.json()["usage"]
        choice = response.json()["choices"][0]
        text, reason = choice["message"]["content"], choice["finish_reason"]
    assert (text, reason) == ("a" * 7, "length")
    assert usage["total_tokens"] == PROMPT_TOKENS + 7
    assert usage["limited_by"] == {"scope": "tenant", "limit": "tokens_per_minute"}
    assert error_of(ask(client), 429)["code"] == "rate_limit_exceeded"


def test_what_an_answer_did_not_need_is_free_again(client, authenticator, engine):
    engine.reply = "four"
    limit(authenticator, tokens_per_minute=4 * (PROMPT_TOKENS + 4))
    for _ in range(4):
        # Each holds all that is left, and gives back what it did not use before its client is answered.
        assert ask(client).json()["choices"][0]["message"]["content"] == "four"
    assert ask(client).status_code == 429


def test_choices_share_a_limit(client, authenticator, engine):
    engine.reply = "a" * 50
    limit(authenticator, tokens_per_minute=PROMPT_TOKENS + 10)
    body = ask(client, n=3).json()
    assert [len(choice["message"]["content"]) for choice in body["choices"]] == [3, 3, 3]
    assert body["usage"]["total_tokens"] == PROMPT_TOKENS + 9


def test_a_request_that_no_wait_can_help(client, authenticator):
    limit(authenticator, tokens_per_minute=PROMPT_TOKENS)
    refused = ask(client)
    assert error_of(refused, 429)["code"] == "request_exceeds_limit"
    assert "retry-after" not in refused.headers


def test_the_longest_context_binds_before_any_work(client, authenticator, engine):
    limit(authenticator, context_tokens=PROMPT_TOKENS + 3)
    engine.reply = "a" * 50
    assert ask(client).json()["usage"]["completion_tokens"] == 3
    assert error_of(ask(client, max_tokens=4), 400)["code"] == "context_length_exceeded"
    long = [{"role": "user", "content": "a long question"}]
    assert error_of(ask(client, messages=long), 400)["code"] == "context_length_exceeded"
    assert len(engine.calls) == 1


def test_a_request_that_fails_before_the_engine_has_begun_is_not_counted(client, authenticator, engine):
    limit(authenticator, requests_per_minute=1, concurrent=1)
    engine.fail_at, engine.computes = 0, False
    assert ask(client).status_code == 500
    engine.fail_at = None
    assert ask(client).status_code == 200


async def test_concurrency_is_free_when_the_client_is_answered_or_gone(server, authenticator, engine):
    limit(authenticator, concurrent=1)
    engine.reply, engine.pace_s = "a" * 200, 0.01
    async with httpx.AsyncClient(base_url=server.url, headers=AUTHORISED, timeout=30) as http:
        async with http.stream("POST", CHAT, json=BODY | {"stream": True}) as response:
            await anext(response.aiter_bytes())
            refused = await http.post(CHAT, json=BODY)
            assert error_of(refused, 429)["limit"]["name"] == "concurrent"
        # The connection is dropped; its place is free as soon as the server has noticed.
        engine.pace_s = 0.0
        async with asyncio.timeout(30):
            while (await http.post(CHAT, json=BODY)).status_code == 429:
                await asyncio.sleep(0.01)
        for _ in range(20):
            assert (await http.post(CHAT, json=BODY | {"max_tokens": 2})).status_code == 200


async def test_a_hundred_at_once_stay_within_the_limit(server, authenticator, engine):
    engine.reply, engine.pace_s = "a" * 20, 0.001
    budget = 30 * (PROMPT_TOKENS + 20) + 5
    limit(authenticator, tokens_per_day=budget)
    async with httpx.AsyncClient(base_url=server.url, headers=AUTHORISED, timeout=30) as http:

        async def one() -> int:
            response = await http.post(CHAT, json=BODY | {"max_tokens": 20})
            return response.json()["usage"]["total_tokens"] if response.status_code == 200 else 0

        used = sum(await asyncio.gather(*(one() for _ in range(100))))
    assert 0.98 * budget <= used <= budget


@pytest.mark.parametrize(
    ("key", "asked", "served", "echoed"),
    [
        (KEY, None, STANDARD, None),
        (KEY, "priority", STANDARD, "default"),
        (KEY, "auto", STANDARD, "default"),
        (PREMIUM_KEY, None, PREMIUM, None),
        (PREMIUM_KEY, "auto", PREMIUM, "priority"),
        (PREMIUM_KEY, "flex", BATCH, "flex"),
        (PREMIUM_KEY, "default", STANDARD, "default"),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_service_tier_lowers_and_never_raises(client, engine, path, key, asked, served, echoed):
    body = {"model": "tiny", "max_tokens": 2} | ({"prompt": "hi"} if path == "completions" else BODY)
    headers = {"authorization": f"Bearer {key}", "x-tier": "premium", "x-priority": "0"}
    response = client.post(f"/v1/{path}", json=body | {"service_tier": asked}, headers=headers)
    assert engine.calls[0].service_class == served
    assert response.json().get("service_tier") == echoed


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0, "0ms"), (120, "120ms"), (1000, "1s"), (1001, "2s"), (360_000, "6m0s"), (3_723_000, "1h2m3s")],
)
def test_durations(milliseconds, text):
    assert duration(milliseconds) == text


def test_an_answer_ends_where_the_money_does(engine, authenticator, metrics, limiter, tmp_path):
    limit(authenticator, nanodollars_per_month=PROMPT_TOKENS * 100 + 5 * 400 + 399)
    engine.reply = "a" * 50
    services = services_with(tmp_path, engine, authenticator, metrics=metrics, limiter=limiter)
    with TestClient(create_app(Settings(data_dir=tmp_path), services), headers=AUTHORISED) as client:
        usage = ask(client).json()["usage"]
        assert usage["completion_tokens"] == 5
        assert usage["limited_by"] == {"scope": "tenant", "limit": "nanodollars_per_month"}
        error = error_of(ask(client), 429)
        assert error["code"] == "insufficient_quota"
