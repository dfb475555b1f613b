"""POST /v1/embeddings: what clients ask and get, and that it is held, billed and measured like every request."""

import base64
import http.client
import math
import struct
from dataclasses import replace

import orjson
import pytest

from engine.request import BATCH, PREMIUM, STANDARD, Pooling
from gateway.formats.openai.embeddings import INPUTS_AT_A_TIME
from gateway.metering.event import Ending
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.policies import RoutingPolicy, TenantPolicies
from tests.support.error_envelope import error_of
from tests.support.fake_engine import embedding_of
from tests.support.fake_model import BOS, VOCAB_SIZE
from tests.support.gateway import AUTHORISED, KEY, PREMIUM_KEY, limit, until
from tests.support.usage_events import cost, event_of, events_of

URL = "/v1/embeddings"
BODY = {"model": "tiny", "input": "abc"}
TOKENS = 4
"""Of that input, by the fake tokenizer."""


def ask(client, **fields):
    return client.post(URL, json=BODY | fields)


def asked(server, **fields) -> http.client.HTTPConnection:
    """A connection with a request on its way."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", URL, orjson.dumps(BODY | fields), AUTHORISED | {"content-type": "application/json"})
    return connection


def vector_of(prompt) -> list[float]:
    return list(struct.unpack("<3f", embedding_of(prompt)))


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}], ids=str)
def test_the_official_client_gets_a_vector_for_each_input_in_order(sdk, encoding):
    answer = sdk.embeddings.create(model="tiny", input=["abc", "d"], user="u", **encoding)
    assert (answer.object, answer.model) == ("list", "tiny")
    assert [(each.object, each.index) for each in answer.data] == [("embedding", 0), ("embedding", 1)]
    given = [each.embedding for each in answer.data]
    if encoding == {"encoding_format": "base64"}:  # the client leaves that as it is where it is asked for
        given = [list(struct.unpack("<3f", base64.b64decode(each))) for each in given]
    assert given == [pytest.approx(vector_of([BOS, *text]), rel=1e-6) for text in (b"abc", b"d")]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (6, 6)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("abc", [(BOS, 97, 98, 99)]),
        (["abc", ""], [(BOS, 97, 98, 99), (BOS,)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
def test_inputs_are_texts_or_token_ids(client, engine, given, prompts):
    answer = ask(client, input=given).json()
    assert [call.prompt for call in engine.calls] == prompts
    assert [each["embedding"] for each in answer["data"]] == [pytest.approx(vector_of(each)) for each in prompts]
    assert {call.params.pooling for call in engine.calls} == {Pooling.MEAN}


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"add_special_tokens": False}, (97, 98, 99)),
        ({"truncate_prompt_tokens": 2}, (98, 99)),
        ({"input": "x" * 600, "truncate_prompt_tokens": -1}, (120,) * 512),
        ({"input": [[1, 2, 3]], "truncate_prompt_tokens": 2}, (2, 3)),
    ],
)
def test_how_an_input_becomes_tokens_can_be_said(client, engine, fields, prompt):
    usage = ask(client, **fields).json()["usage"]
    assert engine.calls[0].prompt == prompt
    assert usage["prompt_tokens"] == len(prompt)


def test_numbers_have_the_digits_of_float32(client):
    (each,) = ask(client).json()["data"]
    assert max(len(str(number)) for number in each["embedding"]) <= 12


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": {}}, "input", "invalid_type"),
        ({"input": [[]]}, "input[0]", "invalid_value"),
        ({"input": ["a", 1]}, "input[1]", "invalid_type"),
        ({"input": [[1], "a"]}, "input[1]", "invalid_type"),
        ({"input": [1, "a"]}, "input[1]", "invalid_type"),
        ({"input": [1, -1]}, "input[1]", "invalid_value"),
        ({"input": [[1], [VOCAB_SIZE]]}, "input", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": ["a", "x" * 512]}, "input", "context_length_exceeded"),
        ({"encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"dimensions": 2}, "dimensions", "unsupported_parameter"),
        ({"normalize": False}, "normalize", "unsupported_parameter"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"nonsense": 1}, "nonsense", "unknown_parameter"),
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": "org/tiny-2"}, "model", "unsupported_model"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value"),
    ],
)
def test_what_is_refused_is_named_before_any_work(client, engine, journal, fields, param, code):
    error = error_of(ask(client, **fields), 400)
    assert (error["param"], error["code"]) == (param, code)
    assert engine.calls == []
    assert events_of(journal) == []


def test_an_input_may_fill_the_window(client):
    assert ask(client, input="x" * 511).json()["usage"]["prompt_tokens"] == 512


def test_as_many_inputs_as_openai_takes(client, engine):
    answer = ask(client, input=["a"] * 2048, encoding_format="base64").json()
    assert [each["index"] for each in answer["data"]] == list(range(2048))
    assert answer["usage"]["prompt_tokens"] == 2 * 2048
    assert len({call.request_id for call in engine.calls}) == 2048


def test_the_engine_has_some_of_many_inputs_at_a_time(server, engine, journal, monkeypatch):
    """The gateway does not wait for the usage of inputs that it never submitted."""
    monkeypatch.setattr("gateway.generation.admit.USAGE_TIMEOUT_S", 60)
    engine.pace_s = 0.2
    connection = asked(server, input=["a"] * 200)
    until(lambda: len(engine.calls) == 2 * INPUTS_AT_A_TIME)
    assert len(engine.live) <= INPUTS_AT_A_TIME
    connection.close()
    event = event_of(journal)
    assert (event.finish_reason, event.cost_nanodollars) == (Ending.CANCELLED, 0)
    assert len(engine.calls) == 2 * INPUTS_AT_A_TIME


def test_a_model_is_named_by_its_own_name(client, authenticator):
    principal = authenticator.principals[KEY]
    policies = TenantPolicies(RoutingPolicy(aliases={"mine": "tiny"}))
    authenticator.principals[KEY] = replace(principal, policies=policies)
    assert error_of(ask(client, model="mine"), 400)["code"] == "unsupported_model"
    assert error_of(ask(client, model="none"), 404)["code"] == "model_not_found"


@pytest.mark.parametrize("grant", [{"scopes": frozenset({KeyScope.CHAT})}, {"models": frozenset({"org/tiny-2"})}])
def test_a_key_for_other_things_is_refused(client, authenticator, engine, grant):
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], **grant)
    assert error_of(ask(client), 403)["code"] in ("scope_not_allowed", "model_not_allowed")
    assert engine.calls == []


def test_there_are_no_sessions(client):
    refused = client.post(URL, json=BODY, headers={"x-turnpike-session": "s"})
    assert error_of(refused, 400)["param"] == "x-turnpike-session"


@pytest.mark.parametrize(
    ("key", "asked", "served", "echoed"),
    [
        (KEY, None, STANDARD, None),
        (PREMIUM_KEY, "auto", PREMIUM, "priority"),
        (PREMIUM_KEY, "flex", BATCH, "flex"),
    ],
)
def test_the_tier_serves_it(client, engine, key, asked, served, echoed):
    headers = {"authorization": f"Bearer {key}"}
    answer = client.post(URL, json=BODY | {"service_tier": asked}, headers=headers).json()
    assert engine.calls[0].service_class == served
    assert answer.get("service_tier") == echoed


def test_is_billed_as_prompt_tokens_and_nothing_else(client, journal):
    response = ask(client, input=["abc", "de"])
    (event,) = events_of(journal)
    usage = response.json()["usage"]
    assert usage == {"prompt_tokens": 7, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (7, 2, 0)
    assert event.cost_nanodollars == cost(event) == 5 * 100 + 2 * 50
    assert (event.requested_model, event.served_model, event.route_reason) == ("tiny", "tiny", "explicit")
    assert (event.finish_reason, event.ttft_ms, event.undelivered_tokens) == (Ending.STOP, None, 0)
    assert event.request_id == response.json()["id"]
    assert event.request_id.startswith("embd-")
    assert response.headers["x-turnpike-served-model"] == "tiny"


def test_a_failure_costs_nothing(client, journal, engine):
    engine.fail_at = 0
    assert error_of(ask(client, input=["a", "b"]), 500)["code"] == "engine_error"
    event = event_of(journal)
    assert (event.finish_reason, event.prompt_tokens, event.cost_nanodollars) == (Ending.ERROR, 0, 0)
    assert engine.live == set()


def test_a_client_that_leaves_pays_nothing_and_ends_the_work(server, journal, engine):
    engine.pace_s = 0.3
    connection = asked(server, input=["a", "b"])
    until(lambda: len(engine.live) == 2)
    connection.close()
    event = event_of(journal)
    assert (event.finish_reason, event.cost_nanodollars) == (Ending.CANCELLED, 0)
    assert engine.live == set()


def test_holds_its_tokens_and_settles_them_exactly(client, authenticator, engine):
    limit(authenticator, tokens_per_minute=3 * TOKENS - 1)
    first = ask(client)
    assert first.headers["x-ratelimit-remaining-tokens"] == str(2 * TOKENS - 1)
    assert ask(client).status_code == 200
    error = error_of(ask(client), 429)
    assert error["limit"] == {"scope": "tenant", "name": "tokens_per_minute", "limit": 3 * TOKENS - 1}
    assert len(engine.calls) == 2


def test_a_request_is_one_whatever_its_inputs(client, authenticator):
    limit(authenticator, requests_per_minute=2, concurrent=1)
    assert [ask(client, input=["a", "b", "c"]).status_code for _ in range(3)] == [200, 200, 429]


def test_ends_where_the_money_does(client, authenticator, engine):
    limit(authenticator, nanodollars_per_month=TOKENS * 100 - 1)
    assert error_of(ask(client), 429)["limit"]["name"] == "nanodollars_per_month"
    assert engine.calls == []


def test_is_turned_away_where_it_would_wait_too_long(client, engine):
    engine.wait_ms = 60_000
    assert error_of(ask(client), 429)["code"] == "overloaded"
    assert engine.calls == []


def test_is_measured_under_its_own_name(client, metrics):
    ask(client)
    labels = {"gen_ai_operation_name": "embeddings", "gen_ai_request_model": "tiny", "turnpike_tier": "standard"}
    value = metrics.registry.get_sample_value
    assert value("gen_ai_server_request_duration_seconds_count", labels | {"error_type": ""}) == 1
    assert value("gen_ai_client_token_usage_sum", labels | {"gen_ai_token_type": "input"}) == TOKENS
    assert value("gen_ai_client_token_usage_sum", labels | {"gen_ai_token_type": "output"}) == 0


def test_the_fake_vectors_have_length_1():
    assert math.hypot(*vector_of([BOS, 97])) == pytest.approx(1)
