"""Any body gets a response or an envelope, never 5xx, and leaves no request running."""

import pytest
from hypothesis import given

from tests.fuzz.bodies import RESPONSE, RESPONSES, bodies_of
from tests.support import sse
from tests.support.error_envelope import error_of
from tests.support.mutated_bodies import JSON_HEADERS, QUICK, as_sent, mutated, values

FUNCTIONS = {
    "model": "tiny",
    "tools": [
        {"type": "function", "name": "f", "description": "d", "strict": True, "parameters": {"type": "object"}},
        {"type": "function", "name": "g"},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
}


def check(client, engine, content: bytes) -> None:
    response = client.post(RESPONSES, content=content, headers=JSON_HEADERS)
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        error = error_of(response)
        assert error["param"] is None or isinstance(error["param"], str)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert sse.events(response.text)[-1]["type"] in ("response.completed", "response.incomplete")
    assert engine.live == set()


@pytest.mark.parametrize(("path", "full"), [*bodies_of(RESPONSES), (RESPONSES, RESPONSE | FUNCTIONS)])
def test_mutated_bodies(client, engine, path, full):
    @QUICK
    @given(mutated(full))
    def run(mutant: dict) -> None:
        check(client, engine, as_sent(mutant))

    assert client.post(RESPONSES, json=full).status_code == 200
    run()
    assert client.post(RESPONSES, json=full).status_code == 200


def test_any_json(client, engine):
    @QUICK
    @given(values)
    def run(body: object) -> None:
        check(client, engine, as_sent(body))

    run()
