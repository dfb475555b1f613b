"""Errors on Anthropic's paths have Anthropic's envelope, whatever layer raises them; all other paths have OpenAI's."""

import pytest

from gateway.http.anthropic_errors import anthropic_error
from gateway.http.errors import APIError, invalid
from tests.support import error_envelope as envelope
from tests.support.anthropic_error_envelope import error_of
from tests.support.gateway import MAX_BODY_BYTES

MESSAGES = "/v1/messages"


def test_a_path_that_is_not_there(client):
    assert error_of(client.get(f"{MESSAGES}/batches"), 404)
    assert error_of(client.get(MESSAGES), 405)


def test_a_wrong_key(client):
    for headers in ({"authorization": "Bearer wrong"}, {"authorization": "", "x-api-key": "wrong"}):
        assert "x-api-key" in error_of(client.post(MESSAGES, json={}, headers=headers), 401)


def test_keys_that_cannot_be_checked(client, authenticator):
    authenticator.down = True
    response = client.post(MESSAGES, json={})
    error_of(response, 503)
    assert response.headers["retry-after"] == "5"


def test_a_body_that_is_too_large(client):
    error_of(client.post(MESSAGES, content=b"x" * (MAX_BODY_BYTES + 1)), 413)


def test_a_frame_that_is_too_large(client):
    error_of(client.post(MESSAGES, headers={"x": "y" * 40_000}), 431)


@pytest.mark.parametrize("path", ["/v1/messagesx", "/v1/chat/completions/v1/messages", "/v1/message", "//v1/messages"])
def test_other_paths_keep_openais_envelope(client, path):
    response = client.post(path, json={})
    assert envelope.error_of(response, 404)["code"] == "not_found"
    assert "request-id" not in response.headers


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            invalid("top_p", "top_p must be in (0, 1], got 2."),
            "invalid_request_error",
            "top_p must be in (0, 1], got 2.",
        ),
        (invalid("tools[0].name", "Unknown."), "invalid_request_error", "tools[0].name: Unknown."),
        (APIError(429, "busy", code="overloaded"), "overloaded_error", "busy"),
        (APIError(429, "spent", code="insufficient_quota"), "rate_limit_error", "spent"),
        (APIError(409, "taken"), "conflict_error", "taken"),
    ],
)
def test_types_and_messages(error, kind, message):
    assert anthropic_error(error) == {"type": "error", "error": {"type": kind, "message": message}}
