"""Responses over HTTP, and what may be said in them."""

import pytest

from tests.support import sse
from tests.support.responses_bodies import PATH, body


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
        return sse.events(response.text)

    return watch
