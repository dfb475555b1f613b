"""Models, tokenisation, metrics."""

import pytest

from tests.support.error_envelope import error_of
from tests.support.fake_model import BOS
from tests.support.gateway import USER


def test_models_state_their_window(client):
    body = client.get("/v1/models").json()
    assert body["object"] == "list"
    assert body["data"][0] == {
        "id": "tiny",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "turnpike",
        "max_model_len": 512,
        "context_window": 512,
        "default_parameters": {
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        },
    }
    assert client.get("/v1/models/org/tiny-2").json() == body["data"][1]
    assert client.get("/v1/models/org%2Ftiny-2").json() == body["data"][1]
    assert error_of(client.get("/v1/models/x"), 404)["code"] == "model_not_found"


def test_tokenize_text(client):
    body = client.post("/v1/tokenize", json={"model": "tiny", "prompt": "aé", "return_token_strs": True}).json()
    assert body == {
        "count": 4,
        "max_model_len": 512,
        "tokens": [BOS, 97, 0xC3, 0xA9],
        "token_strs": ["<s>", "a", "bytes:\\xc3", "bytes:\\xa9"],
    }
    body = client.post("/v1/tokenize", json={"model": "tiny", "prompt": "", "add_special_tokens": False}).json()
    assert (body["tokens"], body["token_strs"]) == ([], None)


def test_tokenize_is_what_chat_counts(client):
    asked = {"model": "tiny", "messages": [USER], "chat_template_kwargs": {"a": 1}}
    count = client.post("/v1/tokenize", json=asked).json()["count"]
    assert count == client.post("/v1/chat/completions", json=asked).json()["usage"]["prompt_tokens"]


def test_tokenize_an_answer_that_is_gone_on_with(client):
    messages = [USER, {"role": "assistant", "content": "Once"}]
    asked = {"model": "tiny", "messages": messages, "continue_final_message": True}
    body = client.post("/v1/tokenize", json=asked | {"return_token_strs": True}).json()
    assert "".join(body["token_strs"]) == "<s><user>hi\n<assistant>Once"
    assert body["count"] == client.post("/v1/chat/completions", json=asked).json()["usage"]["prompt_tokens"]


def test_tokenize_what_tools_add(client):
    asked = {"model": "tiny", "messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}]}
    count = client.post("/v1/tokenize", json=asked).json()["count"]
    assert count == client.post("/v1/chat/completions", json=asked).json()["usage"]["prompt_tokens"]
    assert count > client.post("/v1/tokenize", json=asked | {"tools": []}).json()["count"]


def test_tokenize_may_be_longer_than_the_window(client):
    assert client.post("/v1/tokenize", json={"model": "tiny", "prompt": "x" * 50_000}).json()["count"] == 50_001


def test_detokenize(client):
    body = client.post("/v1/detokenize", json={"model": "tiny", "tokens": [BOS, 97, 0xC3, 0xA9]}).json()
    assert body == {"prompt": "<s>aé"}
    body = client.post("/v1/detokenize", json={"model": "tiny", "tokens": [97] * 50_000}).json()
    assert body == {"prompt": "a" * 50_000}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/tokenize", {}, "messages"),
        ("/v1/tokenize", {"prompt": 5}, "prompt"),
        ("/v1/tokenize", {"prompt": "a", "messages": [USER]}, "messages"),
        ("/v1/tokenize", {"messages": [USER], "add_special_tokens": False}, "add_special_tokens"),
        ("/v1/tokenize", {"prompt": "a", "temperature": 1}, "temperature"),
        ("/v1/detokenize", {}, "tokens"),
        ("/v1/detokenize", {"tokens": "a"}, "tokens"),
        ("/v1/detokenize", {"tokens": []}, "tokens"),
        ("/v1/detokenize", {"tokens": ["a"]}, "tokens[0]"),
        ("/v1/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/v1/detokenize", {"tokens": [5000]}, "tokens"),
    ],
)
def test_refusals(client, path, fields, param):
    assert error_of(client.post(path, json={"model": "tiny"} | fields), 400)["param"] == param


def test_metrics_count_requests_by_outcome(client, engine, metrics):
    chat = {"model": "tiny", "messages": [USER], "n": 2}
    client.post("/v1/chat/completions", json=chat)
    client.post("/v1/chat/completions", json=chat | {"stream": True})
    client.post("/v1/completions", json={"model": "tiny", "prompt": "x" * 600})
    engine.fail_at = 2
    client.post("/v1/chat/completions", json=chat | {"stream": True})

    def value(name: str, **labels: str) -> float | None:
        served = {"gen_ai_request_model": "tiny", "turnpike_tier": "standard"}
        return metrics.registry.get_sample_value(name, served | {"gen_ai_operation_name": "chat"} | labels)

    duration = "gen_ai_server_request_duration_seconds_count"
    assert value(duration, error_type="") == 2
    assert value(duration, error_type="engine_error") == 1
    refused = {"gen_ai_operation_name": "text_completion", "error_type": "context_length_exceeded"}
    assert value(duration, **refused) == 1
    assert value("gen_ai_server_time_to_first_token_seconds_count") == 3
    assert value("gen_ai_server_time_per_output_token_seconds_count") == 4
    assert value("gen_ai_client_token_usage_sum", gen_ai_token_type="output") == 52
    scraped = client.get("/metrics")
    assert scraped.headers["content-type"].startswith("text/plain")
    assert "gen_ai_server_request_duration_seconds_bucket" in scraped.text
