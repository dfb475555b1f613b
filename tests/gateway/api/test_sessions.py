"""Sessions over HTTP: what the next turn is shown, and what becomes of a turn that does not end well."""

import pytest

from gateway.sessions import SessionKey
from tests.gateway.api.conftest import PREMIUM_KEY
from tests.gateway.api.envelope import error_of

CHAT = "/v1/chat/completions"


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def system(text: str) -> dict:
    return {"role": "system", "content": text}


@pytest.fixture
def say(client, engine):
    """A turn on the session `trip`; what the model was shown, and the response."""

    def say(*messages, session: str = "trip", **fields):
        body = {"model": "tiny", "messages": list(messages), "session_id": session} | fields
        response = client.post(CHAT, json=body)
        assert response.status_code == 200, response.text
        shown = bytes(engine.calls[-1].prompt[1:]).decode()
        return shown, response

    return say


@pytest.mark.parametrize("stream", [False, True])
def test_the_next_turn_is_shown_what_was_said(say, engine, stream):
    engine.reply = "In Rome."
    shown, response = say(user("Where?"), stream=stream)
    assert shown == "<user>Where?\n<assistant>"
    assert response.headers["x-turnpike-session"] == "trip"
    assert response.headers["x-turnpike-session-turns"] == "0"
    shown, response = say(user("When?"), stream=stream)
    assert shown == "<user>Where?\n<assistant>In Rome.\n<user>When?\n<assistant>"
    assert response.headers["x-turnpike-session-turns"] == "1"
    assert "x-turnpike-session-window" not in response.headers
