"""Any body gets a message or an error in Anthropic's envelope, never 5xx, and leaves no request running."""

import pytest
from hypothesis import given

from tests.fuzz.bodies import MESSAGES, bodies_of
from tests.support.anthropic_error_envelope import error_of
from tests.support.mutated_bodies import JSON_HEADERS, QUICK, as_sent, mutated
from tests.support.sse import events


@pytest.mark.parametrize(("path", "body"), bodies_of(MESSAGES))
def test_the_bodies_that_are_mutated_are_valid(client, path, body):
    response = client.post(path, json=body)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("path", "body"), bodies_of(MESSAGES))
def test_mutated_bodies(client, engine, path, body):
    @QUICK
    @given(mutated(body))
    def run(mutant: dict) -> None:
        response = client.post(path, content=as_sent(mutant), headers=JSON_HEADERS)
        assert response.status_code in (200, 400, 404), response.text
        if response.status_code != 200:
            error_of(response, response.status_code)
        elif response.headers["content-type"].startswith("text/event-stream"):
            assert events(response.text)[-1] == {"type": "message_stop"}
        assert engine.live == set()

    run()
