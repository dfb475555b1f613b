"""How an error is spelt: as the API does whose path was asked for, OpenAI's or Anthropic's."""

import orjson
from starlette.types import Scope, Send

from gateway.http.anthropic_errors import anthropic_error, anthropic_status, is_anthropic
from gateway.http.errors import APIError
from gateway.http.request_state import request_state
from gateway.http.responses import send_body


def format_error(scope: Scope, error: APIError) -> tuple[int, bytes]:
    """The status and the body that answer with an error."""
    if not is_anthropic(scope["path"]):
        return error.status, error.envelope()
    return anthropic_status(error), orjson.dumps(anthropic_error(error, request_state(scope).request_id))


async def send_error(scope: Scope, send: Send, error: APIError) -> None:
    status, body = format_error(scope, error)
    await send_body(send, status, body, error.headers)


def request_id_headers(scope: Scope, request_id: str) -> list[tuple[bytes, bytes]]:
    """The name of the request for its client: OpenAI's header, and on Anthropic's paths theirs too."""
    value = request_id.encode("latin-1")
    names = (b"x-request-id", b"request-id") if is_anthropic(scope["path"]) else (b"x-request-id",)
    return [(name, value) for name in names]
