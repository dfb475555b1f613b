"""The same surface over the real engine and a tiny model: that both sides of the seam mean the same."""

import math
import threading

import pytest
from starlette.testclient import TestClient

from engine.config import EngineConfig
from engine.engine import Engine
from gateway.app import create_app
from gateway.config.settings import Settings
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, FakeAuthenticator
from tests.support.services import services_with
from tests.support.sse import chunks
from tests.support.tiny_app import tiny_app
from tests.support.tiny_models import make_checkpoint

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with TestClient(tiny_app(tmp_path_factory.mktemp("model")), headers=AUTHORISED) as client:
        yield client


def post(client, path: str, **fields):
    response = client.post(f"/v1/{path}", json={"model": "tiny"} | fields)
    assert response.status_code == 200, response.text
    return response


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"seed": 7}, {"seed": 7, "n": 3}, {"seed": 7, "stop": ["e"]}])
def test_streamed_and_whole_are_the_same(client, fields):
    fields = {"messages": MESSAGES, "max_tokens": 12, "logprobs": True, "top_logprobs": 2} | fields
    whole = post(client, "chat/completions", **fields).json()
    *seen, last = chunks(
        post(client, "chat/completions", stream=True, stream_options={"include_usage": True}, **fields)
    )
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for expected in whole["choices"]:
        mine = [c["choices"][0] for c in seen if c["choices"][0]["index"] == expected["index"]]
        assert "".join(c["delta"].get("content", "") for c in mine) == expected["message"]["content"]
        assert mine[-1]["finish_reason"] == expected["finish_reason"]
        tokens = [entry["token"] for c in mine for entry in (c["logprobs"] or {"content": []})["content"]]
        assert tokens == [entry["token"] for entry in expected["logprobs"]["content"]]


def test_scoring_a_prompt_takes_no_answer(client):
    scored = post(client, "completions", prompt="The quick brown", echo=True, logprobs=1, max_tokens=0).json()
    [choice] = scored["choices"]
    assert choice["text"] == "The quick brown"
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    first, *rest = choice["logprobs"]["token_logprobs"]
    assert first is None
    assert all(math.isfinite(logprob) and logprob < 0 for logprob in rest)
    assert scored["usage"]["completion_tokens"] == 0


def test_a_batch_says_what_its_prompts_say_alone(client):
    prompts = ["The quick", "A queue is a data"]
    together = post(client, "completions", prompt=prompts, temperature=0, max_tokens=8).json()
    for prompt, choice in zip(prompts, together["choices"], strict=True):
        alone = post(client, "completions", prompt=prompt, temperature=0, max_tokens=8).json()
        assert alone["choices"][0]["text"] == choice["text"]


def test_what_only_the_engine_can_refuse(client):
    for fields, param in (({"prompt": [600]}, "prompt"), ({"prompt": "a", "logit_bias": {"512": 1}}, "logit_bias")):
        response = client.post("/v1/completions", json={"model": "tiny"} | fields)
        assert error_of(response, 400)["param"] == param


def test_tokenize_is_what_chat_counts(client):
    count = post(client, "tokenize", messages=MESSAGES).json()["count"]
    usage = post(client, "chat/completions", messages=MESSAGES, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens"] == count


def test_a_step_that_hangs_takes_the_server_out_of_service(tmp_path, monkeypatch):
    """A client with a running answer receives an error, and load balancers send no further requests to this server."""
    folder = make_checkpoint(tmp_path / "model", "llama")
    config = EngineConfig(dtype="float32", kv_cache_bytes=4 * 2**20, threads=1, step_timeout_seconds=0.5)
    engine = Engine.load({"tiny": folder}, config)
    released = threading.Event()
    runner = engine._core._runtimes["tiny"].executor
    monkeypatch.setattr(runner, "execute", lambda plan: released.wait(20))
    app = create_app(Settings(data_dir=tmp_path / "data"), services_with(folder, engine, FakeAuthenticator()))
    body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 4}
    with TestClient(app, headers=AUTHORISED) as client:
        assert client.get("/readyz").status_code == 200
        assert client.post("/v1/chat/completions", json=body).status_code == 500
        assert not released.is_set()
        assert client.get("/readyz").status_code == 503
        assert client.post("/v1/chat/completions", json=body).status_code == 503
        assert client.get("/healthz").status_code == 200
    released.set()
