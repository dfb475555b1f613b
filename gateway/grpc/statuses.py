"""HTTP's statuses and errors as gRPC's: code, message, and trailers."""

from collections.abc import Mapping

import grpc

from gateway.http.errors import APIError, as_api_error, internal_error

RETRY_AFTER = "retry-after"

_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED,
    402: grpc.StatusCode.RESOURCE_EXHAUSTED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    431: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    502: grpc.StatusCode.UNAVAILABLE,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}

Trailers = tuple[tuple[str, str], ...]


def code_of(status: int) -> grpc.StatusCode:
    """The code of an HTTP status from 400 on."""
    other = grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL
    return _CODES.get(status, other)


def message_of(message: str, param: str | None) -> str:
    """The status message: a status has no field for the parameter, so the message starts with its name."""
    return message if param is None or param in message else f"{param}: {message}"


def trailers_of(headers: Mapping[str, str], code: str | None, param: str | None) -> Trailers:
    """Trailing metadata of an error: when to retry, the limits' states, OpenAI's error code, and the parameter."""
    kept = [(name, value) for name, value in headers.items() if name.startswith((RETRY_AFTER, "x-"))]
    marks = [(name, value) for name, value in (("error-code", code), ("error-param", param)) if value]
    return (*kept, *marks)


def api_error_of(error: Exception) -> APIError:
    """The typed error, or the one that reveals nothing of an unexpected one."""
    return as_api_error(error) or internal_error()
