"""Formats an error in the envelope of the requested path's API, OpenAI's or Anthropic's."""

import orjson
from starlette.types import Scope, Send

from gateway.http.anthropic_errors import anthropic_error, anthropic_status, is_anthropic
from gateway.http.errors import APIError
from gateway.http.request_state import request_state
from gateway.http.responses import send_body


def format_error(scope: Scope, error: APIError) -> tuple[int, bytes]:
    """Status and body of an error response."""
    status = status_of(scope["path"], error)
    if not is_anthropic(scope["path"]):
        return status, error.envelope()
    return status, orjson.dumps(anthropic_error(error, request_state(scope).request_id))


def status_of(path: str, error: APIError) -> int:
    """Status of an error response to a request of this path."""
    return anthropic_status(error) if is_anthropic(path) else error.status


async def send_error(scope: Scope, send: Send, error: APIError) -> None:
    status, body = format_error(scope, error)
    await send_body(send, status, body, error.headers)


def request_id_headers(scope: Scope, request_id: str) -> list[tuple[bytes, bytes]]:
    """The request id headers: OpenAI's, and on Anthropic's paths also Anthropic's."""
    value = request_id.encode("latin-1")
    names = (b"x-request-id", b"request-id") if is_anthropic(scope["path"]) else (b"x-request-id",)
    return [(name, value) for name in names]
