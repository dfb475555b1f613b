"""Responses over HTTP, and what may be said in them."""

import orjson
import pytest

from tests.support.fake_engine import FakeEngine

PATH = "/v1/responses"
OPENING = "<assistant>"


def body(said: object = "Where?", **fields) -> dict:
    return {"model": "tiny", "input": said} | fields


def shown(engine: FakeEngine) -> str:
    """The last prompt, up to where the answer begins."""
    prompt = bytes(engine.calls[-1].prompt[1:]).decode()
    assert prompt.endswith(OPENING)
    return prompt.removesuffix(OPENING)


def events_of(text: str) -> list[dict]:
    """The events of a stream, each with the name that its data has."""
    events = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


@pytest.fixture
def ask(client):
    """The whole response to a body."""

    def ask(said: object = "Where?", **fields) -> dict:
        response = client.post(PATH, json=body(said, **fields))
        assert response.status_code == 200, response.text
        return response.json()

    return ask


@pytest.fixture
def watch(client):
    """The events of a streamed response."""

    def watch(said: object = "Where?", **fields) -> list[dict]:
        response = client.post(PATH, json=body(said, stream=True, **fields))
        assert response.status_code == 200, response.text
        return events_of(response.text)

    return watch
