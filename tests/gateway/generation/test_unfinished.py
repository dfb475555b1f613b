"""Work of the engine counts against limits even if the client never received it and pays nothing."""

import asyncio
import http.client
import json
from contextlib import closing

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from engine.request import TextDelta, Usage
from gateway.admission.model import Measure, Quota, Scope
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.formats.openai.embeddings import INPUTS_AT_A_TIME
from gateway.generation.usage import UsageTotal
from gateway.metering.event import Ending, UsageEvent
from gateway.tenancy.limits import ScopeKind
from tests.support.error_envelope import error_of
from tests.support.fake_engine import FakeEngine
from tests.support.gateway import AUTHORISED, BODY, CHAT, EASY, HEADERS, PROMPT_TOKENS, allow, limit, serving, until
from tests.support.services import price_book, services_with
from tests.support.usage_events import event_of

LIMITS = {"requests_per_minute": 100, "tokens_per_minute": 10_000, "tokens_per_day": 10_000}


def used(limiter) -> dict[str, int]:
    """Of each limit of the tenant."""
    quotas = [Quota(Scope("tenant-1", ScopeKind.TENANT, "", Measure(name)), amount) for name, amount in LIMITS.items()]
    states = asyncio.run(limiter.usage(quotas))
    assert not any(state.held for state in states)
    return {state.quota.scope.measure.value: state.used for state in states}


def counted(requests: int, tokens: int) -> dict[str, int]:
    return {"requests_per_minute": requests, "tokens_per_minute": tokens, "tokens_per_day": tokens}


def hang_up(server, journal, reached, path: str = CHAT, **fields) -> UsageEvent:
    """Ask, and leave when `reached` says so. The event of that."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("POST", path, json.dumps(fields or BODY | {"stream": True}), HEADERS)
        until(reached)
    return event_of(journal)


def test_a_disconnect_before_the_first_token_is_billed_the_prompt(server, journal, engine, limiter, authenticator):
    limit(authenticator, **LIMITS)
    engine.pace_s = 3600.0
    event = hang_up(server, journal, lambda: engine.live)
    assert (event.finish_reason, event.cost_nanodollars) == (Ending.CANCELLED, 0)
    until(lambda: limiter.counts()["open"] == 0)
    assert used(limiter) == counted(1, PROMPT_TOKENS)


def test_as_often_as_it_does_so_the_limit_binds(server, engine, authenticator, limiter):
    limit(authenticator, requests_per_minute=2)
    engine.pace_s = 3600.0
    for number in range(1, 3):
        with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
            connection.request("POST", CHAT, json.dumps(BODY | {"stream": True}), HEADERS)
            until(lambda number=number: len(engine.calls) == number and engine.live)
        until(lambda: limiter.counts()["open"] == 0)
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.request("POST", CHAT, json.dumps(BODY), HEADERS)
        assert connection.getresponse().status == 429


def test_one_that_only_waited_has_used_nothing(server, journal, engine, limiter, authenticator):
    limit(authenticator, **LIMITS)
    engine.pace_s, engine.computes = 3600.0, False
    hang_up(server, journal, lambda: engine.live)
    until(lambda: limiter.counts()["open"] == 0)
    assert used(limiter) == counted(0, 0)


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_computed_and_not_sent_counts(server, journal, engine, limiter, authenticator, stream):
    limit(authenticator, **LIMITS)
    engine.reply, engine.pace_s = "x" * 200, 0.01
    event = hang_up(server, journal, lambda: engine.generated > 5, **BODY, stream=stream)
    until(lambda: limiter.counts()["open"] == 0)
    computed = event.completion_tokens + event.undelivered_tokens
    assert computed > 5
    assert used(limiter) == counted(1, PROMPT_TOKENS + computed)


def test_what_fails_in_the_engine_counts_as_far_as_it_came(client, engine, limiter, authenticator):
    limit(authenticator, **LIMITS)
    engine.fail_at = 4
    error_of(client.post(CHAT, json=BODY), 500)
    assert used(limiter) == counted(1, PROMPT_TOKENS + 4)


def test_where_the_engine_says_nothing_all_that_was_held_counts(client, engine, limiter, authenticator, monkeypatch):
    monkeypatch.setattr("gateway.generation.admit.USAGE_TIMEOUT_S", 0.01)
    limit(authenticator, **LIMITS)
    engine.fail_at, engine.tells = 0, False
    error_of(client.post(CHAT, json=BODY | {"max_tokens": 7, "n": 2}), 500)
    assert used(limiter) == counted(1, PROMPT_TOKENS + 2 * 7)


def test_a_request_cancelled_while_the_engine_is_waited_for_is_settled(app, engine, journal, limiter, authenticator):
    """As a shutdown does that cuts what has failed and is not accounted for yet."""
    limit(authenticator, **LIMITS)
    engine.fail_at, engine.tells = 0, False

    async def cancelled() -> None:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=AUTHORISED)
        async with asyncio.timeout(30), app.router.lifespan_context(app), http:
            request = asyncio.create_task(http.post(CHAT, json=BODY | {"max_tokens": 7}))
            while not limiter.counts()["open"] or engine.live:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert not request.done(), "the engine is waited for"
            request.cancel()
            await asyncio.wait([request])
            assert limiter.counts()["open"] == 0
            while not journal.last_sequence:
                await asyncio.sleep(0.01)

    asyncio.run(cancelled())
    assert used(limiter) == counted(1, PROMPT_TOKENS + 7)


def test_inputs_that_were_given_to_the_engine_count(server, journal, engine, limiter, authenticator):
    limit(authenticator, **LIMITS)
    engine.pace_s = 3600.0
    inputs = ["abc"] * (INPUTS_AT_A_TIME + 10)
    hang_up(server, journal, lambda: len(engine.live) == INPUTS_AT_A_TIME, "/v1/embeddings", model="tiny", input=inputs)
    until(lambda: limiter.counts()["open"] == 0)
    assert used(limiter) == counted(1, 4 * INPUTS_AT_A_TIME)


@pytest.fixture
def cascade(authenticator, limiter, journal, tmp_path):
    """An application with a large and a small model, and the engine below it."""
    engine = FakeEngine({"big": 512, "small": 512})
    engine.replies = {"big": "from big", "small": "from small"}
    engine.sure = {"small": 0.5}
    allow(authenticator, cascade_percent=70)
    limit(authenticator, **LIMITS)
    settings = Settings(data_dir=tmp_path, models=dict.fromkeys(engine.models, tmp_path), small_models={"big": "small"})
    prices = price_book({"big": ("1", "0.5", "4"), "small": ("0.1", "0.05", "0.4")})
    given = {"limiter": limiter, "journal": journal, "prices": prices}
    return create_app(settings, services_with(tmp_path, engine, authenticator, **given)), engine


QUESTION = {"model": "auto", "messages": [{"role": "user", "content": EASY}]}
QUESTION_TOKENS = PROMPT_TOKENS + len(EASY) - len("hi")


def test_a_trial_whose_client_leaves_counts(cascade, journal, limiter):
    app, engine = cascade
    engine.pace_s = 0.05
    with serving(app) as server:
        event = hang_up(server, journal, lambda: engine.generated > 1, **QUESTION, stream=True)
        until(lambda: limiter.counts()["open"] == 0)
    assert (event.cost_nanodollars, event.completion_tokens) == (0, 0)
    assert used(limiter) == counted(1, QUESTION_TOKENS + event.undelivered_tokens)


def test_a_trial_in_vain_counts_with_the_answer(cascade, limiter):
    app, _ = cascade
    with TestClient(app, headers=AUTHORISED) as client:
        response = client.post(CHAT, json=QUESTION)
    assert response.json()["model"] == "big"
    assert used(limiter) == counted(1, 2 * QUESTION_TOKENS + len("from small") + len("from big"))


def test_a_trial_that_is_sent_counts_once(cascade, limiter):
    app, engine = cascade
    engine.sure = {"small": 0.9}
    with TestClient(app, headers=AUTHORISED) as client:
        assert client.post(CHAT, json=QUESTION).json()["model"] == "small"
    assert used(limiter) == counted(1, QUESTION_TOKENS + len("from small"))


def test_where_there_is_no_room_for_both_the_trial_is_sent(cascade, limiter, authenticator):
    app, _ = cascade
    tokens = 2 * QUESTION_TOKENS + len("from small")
    limit(authenticator, ScopeKind.KEY, "pubid1", tokens_per_minute=tokens)
    with TestClient(app, headers=AUTHORISED) as client:
        response = client.post(CHAT, json=QUESTION | {"max_tokens": 20})
    assert response.headers["x-turnpike-route-reason"] == "budget"
    assert used(limiter) == counted(1, QUESTION_TOKENS + len("from small"))


def test_a_trial_counts_where_no_room_is_left_for_anything(cascade, limiter, monkeypatch):
    """Another request has taken it between two holds."""
    app, _ = cascade
    release = limiter.release

    async def release_to_another(hold):
        settlement = await release(hold)
        monkeypatch.setattr(limiter, "hold", no_room)
        return settlement

    async def no_room(*_, **__):
        raise RuntimeError("the store is broken")

    monkeypatch.setattr(limiter, "release", release_to_another)
    with TestClient(app, headers=AUTHORISED, raise_server_exceptions=False) as client:
        assert client.post(CHAT, json=QUESTION).status_code == 500
    assert used(limiter) == counted(1, QUESTION_TOKENS + len("from small"))


lengths = st.lists(st.integers(1, 50), min_size=1, max_size=3)


@given(lengths, st.integers(1, 3), st.data())
def test_no_less_counts_than_is_billed_and_no_more_than_is_held(prompts, choices_each, data):
    most = [data.draw(st.integers(1, 20)) for _ in prompts]
    usage, all_known = UsageTotal(prompts, choices_each), True
    for choice in range(len(prompts) * choices_each):
        length, bound = prompts[choice // choices_each], most[choice // choices_each]
        sent = data.draw(st.integers(0, bound))
        if sent:
            usage.add(choice, TextDelta(0, token_ids=(1,) * sent))
        if data.draw(st.booleans()):
            computed = data.draw(st.integers(sent, bound))
            prefilled = length if computed else data.draw(st.integers(0, length))
            usage.on_aborted(choice, Usage(length, computed, prefilled_tokens=prefilled))
        else:
            all_known = False
    held = sum(prompts) + choices_each * sum(most)
    assert usage.total_tokens <= usage.counted_tokens() <= usage.counted_tokens(most) <= held
    assert usage.settled == all_known
    if all_known:
        assert usage.counted_tokens(most) == usage.counted_tokens()
