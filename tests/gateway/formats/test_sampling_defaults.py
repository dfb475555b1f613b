"""A model's sampling defaults reach the engine from every format, where the body does not state the parameter."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from engine.sampling_defaults import SamplingDefaults
from tests.support.fake_model import FakeModel
from tests.support.gateway import CHAT, USER

DEFAULTS = SamplingDefaults(
    temperature=0.6,
    top_p=0.9,
    top_k=20,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.5,
    frequency_penalty=0.25,
)
OTHER = SamplingDefaults(temperature=0.7, top_p=0.9)
BODIES: Mapping[str, dict[str, Any]] = {
    CHAT: {"model": "tiny", "messages": [USER]},
    "/v1/completions": {"model": "tiny", "prompt": "ab"},
    "/v1/responses": {"model": "tiny", "input": "ab"},
    "/v1/messages": {"model": "tiny", "messages": [USER], "max_tokens": 8},
}
STATED: Mapping[str, dict[str, Any]] = {
    CHAT: {
        "temperature": 1,
        "top_p": 1,
        "top_k": -1,
        "min_p": 0,
        "repetition_penalty": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0,
    },
    "/v1/responses": {"temperature": 1, "top_p": 1},
    "/v1/messages": {"temperature": 1, "top_p": 1, "top_k": 0},
}


@pytest.fixture(autouse=True)
def models(engine) -> None:
    engine.models = MappingProxyType(
        {
            "tiny": FakeModel("tiny", 512, sampling_defaults=DEFAULTS),
            "org/tiny-2": FakeModel("org/tiny-2", 512, sampling_defaults=OTHER),
        }
    )


def asked(engine) -> dict[str, Any]:
    return {name: getattr(engine.calls[-1].params, name) for name in DEFAULTS.stated}


@pytest.mark.parametrize("path", BODIES)
def test_a_silent_body_gets_all_of_them(client, engine, path) -> None:
    assert client.post(path, json=BODIES[path]).status_code == 200
    assert asked(engine) == DEFAULTS.stated


@pytest.mark.parametrize("path", BODIES)
def test_a_stated_neutral_value_is_not_replaced(client, engine, path) -> None:
    stated = STATED.get(path, STATED[CHAT])
    assert client.post(path, json=BODIES[path] | stated).status_code == 200
    assert asked(engine) == DEFAULTS.stated | {name: max(value, 0) for name, value in stated.items()}


@pytest.mark.parametrize("path", BODIES)
def test_null_counts_as_unstated(client, engine, path) -> None:
    assert client.post(path, json=BODIES[path] | {"temperature": None}).status_code == 200
    assert asked(engine) == DEFAULTS.stated


def test_each_model_has_its_own(client, engine) -> None:
    assert client.post(CHAT, json=BODIES[CHAT] | {"model": "org/tiny-2"}).status_code == 200
    assert asked(engine) == OTHER.effective


def test_a_response_repeats_the_values_that_applied(client) -> None:
    response = client.post("/v1/responses", json=BODIES["/v1/responses"] | {"top_p": 0.5}).json()
    assert (response["temperature"], response["top_p"]) == (0.6, 0.5)


def test_the_list_of_models_shows_them(client) -> None:
    cards = {card["id"]: card["default_parameters"] for card in client.get("/v1/models").json()["data"]}
    assert cards == {"tiny": DEFAULTS.effective, "org/tiny-2": OTHER.effective}
