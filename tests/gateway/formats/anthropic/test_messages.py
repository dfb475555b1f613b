"""POST /v1/messages with a fake engine: what the model is shown, and how its answer is spelt."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from gateway.tenancy import KeyScope
from tests.support.anthropic_error_envelope import error_of
from tests.support.gateway import KEY, PREMIUM_KEY, USER, limit
from tests.support.session_turns import shown
from tests.support.sse import events
from tests.support.usage_events import events_of

PATH = "/v1/messages"
BODY = {"model": "tiny", "max_tokens": 100, "messages": [USER]}


@pytest.fixture
def ask(client):
    def ask(**fields) -> dict:
        response = client.post(PATH, json=BODY | fields)
        assert response.status_code == 200, response.text
        return response.json()

    return ask


def test_a_whole_answer(client):
    response = client.post(PATH, json=BODY, headers={"anthropic-version": "2023-06-01", "anthropic-beta": "x"})
    body = response.json()
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert body.pop("id").startswith("msg_")
    prompt_tokens = len("B<user>hi\n<assistant>")
    assert body == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello, world!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "stop_details": None,
        "usage": {
            "input_tokens": prompt_tokens - 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1,
            "output_tokens": 13,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }


def test_a_stream(client, engine):
    engine.reply = "Hi!"
    start, *said, delta, stop = events(client.post(PATH, json=BODY | {"stream": True}).text)
    message = start.pop("message")
    assert message["id"].startswith("msg_")
    assert (message["content"], message["stop_reason"], message["role"]) == ([], None, "assistant")
    counts = {"input_tokens": 20, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 1}
    assert message["usage"] == counts | {"output_tokens": 0}
    assert said == [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": letter}}
            for letter in "Hi!"
        ),
        {"type": "content_block_stop", "index": 0},
    ]
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": None, "stop_details": None},
        "usage": counts | {"output_tokens": 3, "output_tokens_details": {"thinking_tokens": 0}},
    }
    assert stop == {"type": "message_stop"}


def test_a_stop_sequence_is_named(ask):
    body = ask(stop_sequences=["zzz", "llo"])
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "llo")


def test_the_length_asked_for(ask, engine):
    body = ask(max_tokens=4)
    assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("max_tokens", 4)


@pytest.mark.parametrize("stream", [False, True])
def test_more_than_the_window_holds_is_asked_for_in_vain(client, engine, stream):
    engine.reply = "x" * 1000
    response = client.post(PATH, json=BODY | {"max_tokens": 32_000, "stream": stream})
    assert response.status_code == 200
    assert '"stop_reason":"model_context_window_exceeded"' in response.text
    assert engine.calls[-1].params.max_tokens == 512 - 21


def test_a_prompt_that_fills_the_window_is_refused(client):
    long = BODY | {"messages": [{"role": "user", "content": "x" * 600}]}
    assert "512" in error_of(client.post(PATH, json=long), 400)


def test_a_limits_cut_is_max_tokens(ask, authenticator):
    limit(authenticator, tokens_per_minute=25)
    body = ask()
    assert (body["stop_reason"], body["usage"]["output_tokens"]) == ("max_tokens", 4)


def test_a_spent_limit(client, authenticator):
    limit(authenticator, requests_per_minute=1)
    assert client.post(PATH, json=BODY).status_code == 200
    refused = client.post(PATH, json=BODY)
    error_of(refused, 429)
    assert int(refused.headers["retry-after"]) > 0


def test_what_the_model_is_shown(ask, engine):
    ask(
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        messages=[
            USER,
            {"role": "assistant", "content": [{"type": "text", "text": "I look."}]},
            {"role": "user", "content": "well?"},
        ],
        thinking={"type": "disabled"},
    )
    assert shown(engine) == (
        "<system>be brief\n<user>hi\n<assistant>I look.\n<user>well?\n[enable_thinking=False]<assistant>"
    )


def test_an_answer_goes_on_with_the_last_word(ask, engine):
    body = ask(messages=[USER, {"role": "assistant", "content": "The best answer is ("}])
    assert shown(engine) == "<user>hi\n<assistant>The best answer is ("
    assert engine.calls[-1].continues_text
    assert body["content"] == [{"type": "text", "text": "Hello, world!"}]


def test_a_refusal_of_the_template_names_messages(client):
    refused = client.post(PATH, json=BODY | {"messages": [{"role": "user", "content": "TEMPLATE-REFUSES"}]})
    assert error_of(refused, 400) == "messages: roles must alternate"


@pytest.mark.parametrize("stream", [False, True])
def test_one_usage_event(client, journal, stream):
    response = client.post(PATH, json=BODY | {"stream": stream})
    (event,) = events_of(journal)
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (21, 1, 13)
    assert event.request_id.startswith("msg_")
    assert event.request_id in response.text


def test_it_counts_as_chat_in_the_metrics(client, metrics):
    client.post(PATH, json=BODY)
    labels = {"gen_ai_operation_name": "chat", "gen_ai_request_model": "tiny", "turnpike_tier": "standard"}
    duration = "gen_ai_server_request_duration_seconds_count"
    assert metrics.registry.get_sample_value(duration, labels | {"error_type": ""}) == 1


def test_a_session_by_its_header(client, engine):
    for text in ("Where?", "When?"):
        body = BODY | {"messages": [{"role": "user", "content": text}]}
        response = client.post(PATH, json=body, headers={"x-turnpike-session": "trip"})
        assert response.headers["x-turnpike-session"] == "trip"
    assert shown(engine) == "<user>Where?\n<assistant>Hello, world!\n<user>When?\n<assistant>"


def test_tiers_in_anthropics_words(ask, client):
    assert ask(service_tier="auto")["usage"]["service_tier"] == "standard"
    premium = {"authorization": f"Bearer {PREMIUM_KEY}"}
    response = client.post(PATH, json=BODY | {"service_tier": "auto"}, headers=premium)
    assert response.json()["usage"]["service_tier"] == "priority"


def test_a_key_in_x_api_key(app):
    with TestClient(app, headers={"x-api-key": KEY}) as client:
        assert client.post(PATH, json=BODY).status_code == 200


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
def test_keys_for_other_things(client, authenticator, engine, path):
    principal = authenticator.principals[KEY]
    authenticator.principals[KEY] = replace(principal, scopes=frozenset({KeyScope.COMPLETIONS}))
    error_of(client.post(path, json=BODY), 403)
    authenticator.principals[KEY] = replace(principal, scopes=frozenset({KeyScope.CHAT}), models=frozenset({"other"}))
    counted = {name: BODY[name] for name in ("model", "messages")}
    error_of(client.post(path, json=BODY if path == PATH else counted), 403)
    assert engine.calls == []
