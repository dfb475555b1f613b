"""Anthropic's envelope for errors: `{"type": "error", "error": {"type", "message"}, "request_id"}`."""

from typing import Any

from gateway.http.errors import APIError

PATH = "/v1/messages"

OVERLOADED_STATUS = 529
"""Anthropic's status for an overloaded server. A request over one of the caller's limits gets 429."""

_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    OVERLOADED_STATUS: "overloaded_error",
}


def is_anthropic(path: str) -> bool:
    """Whether errors on this path use Anthropic's envelope. The path need not have an endpoint."""
    return path == PATH or path.startswith(PATH + "/")


def anthropic_status(error: APIError) -> int:
    return OVERLOADED_STATUS if error.code == "overloaded" else error.status


def anthropic_error(error: APIError, request_id: str | None = None) -> dict[str, Any]:
    """The envelope. It has no `param` member, so the message starts with the parameter's name."""
    status = anthropic_status(error)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = error.message
    if error.param is not None and error.param not in message:
        message = f"{error.param}: {message}"
    envelope: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    return envelope if request_id is None else envelope | {"request_id": request_id}
