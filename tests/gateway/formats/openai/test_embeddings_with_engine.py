"""Embeddings over the real engine and a tiny model: that both sides of the seam mean the same."""

import base64
import struct

import pytest
from starlette.testclient import TestClient

from engine.config import EngineConfig
from engine.engine import Engine
from gateway.app import create_app
from gateway.config.settings import Settings
from gateway.metering.journal.journal import Journal
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, FakeAuthenticator
from tests.support.services import services_with
from tests.support.tiny_models import make_checkpoint
from tests.support.usage_events import cost, events_of

TEXTS = ["The quick brown fox", "A queue is a data structure", "x"]
LONG = "The quick brown fox jumps over the lazy dog. " * 10


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = make_checkpoint(tmp_path_factory.mktemp("model"), "llama")
    config = EngineConfig(dtype="float32", kv_cache_bytes=4 * 2**20, threads=1)
    return Engine.load({"mean": folder, "last": folder, "neither": folder}, config)


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return Journal(tmp_path_factory.mktemp("usage") / "journal.db", min_free_bytes=0)


@pytest.fixture(scope="module")
def client(engine, journal, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder, embeddings={"mean": "mean", "last": "last"})
    app = create_app(settings, services_with(folder, engine, FakeAuthenticator(), journal=journal))
    with TestClient(app, headers=AUTHORISED) as client:
        yield client


def embed(client, model: str, given, **fields) -> list[list[float]]:
    response = client.post("/v1/embeddings", json={"model": model, "input": given} | fields)
    assert response.status_code == 200, response.text
    return [each["embedding"] for each in response.json()["data"]]


@pytest.mark.parametrize("model", ["mean", "last"])
def test_together_alone_and_as_token_ids_are_the_same(client, engine, model):
    together = embed(client, model, TEXTS)
    ids = [list(engine.models[model].text.encode(text)) for text in TEXTS]
    assert [embed(client, model, text)[0] for text in TEXTS] == [pytest.approx(each, abs=1e-5) for each in together]
    assert embed(client, model, ids) == [pytest.approx(each, abs=1e-5) for each in together]
    assert [sum(number**2 for number in each) for each in together] == pytest.approx([1, 1, 1], abs=1e-5)


def test_both_encodings_are_the_same_numbers(client):
    (numbers,) = embed(client, "mean", TEXTS[0], encoding_format="float")
    (written,) = embed(client, "mean", TEXTS[0], encoding_format="base64")
    exact = struct.unpack("<64f", base64.b64decode(written))
    assert struct.pack("<64f", *numbers) == struct.pack("<64f", *exact)


def test_pooling_is_the_models(client):
    assert embed(client, "mean", TEXTS[0]) != [pytest.approx(embed(client, "last", TEXTS[0])[0], abs=1e-3)]


@pytest.mark.parametrize(("model", "has_hits"), [("mean", False), ("last", True)])
def test_what_is_cached_is_billed_as_such(client, journal, model, has_hits):
    seen = len(events_of(journal))
    first, second = embed(client, model, LONG), embed(client, model, LONG)
    assert first == [pytest.approx(second[0], abs=1e-5)]
    event = events_of(journal)[seen:][1]
    assert (event.cached_tokens > 0) == has_hits
    assert (event.completion_tokens, event.cost_nanodollars) == (0, cost(event))
    assert event.engine_ns > 0


def test_the_window_is_for_the_input_alone(client):
    assert len(embed(client, "mean", [[5] * 512])) == 1
    refused = client.post("/v1/embeddings", json={"model": "mean", "input": [[5] * 513]})
    assert error_of(refused, 400)["code"] == "context_length_exceeded"


def test_a_model_that_is_not_listed_is_named(client):
    error = error_of(client.post("/v1/embeddings", json={"model": "neither", "input": "x"}), 400)
    assert error["param"] == "model"
    assert "`neither`" in error["message"]
