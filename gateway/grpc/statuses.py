"""HTTP's statuses and errors as gRPC's: code, message, and trailers."""

from collections.abc import Mapping
from dataclasses import dataclass
from string import printable
from urllib.parse import quote

import grpc

from gateway.http.errors import APIError, as_api_error, internal_error

RETRY_AFTER = "retry-after"
RETRY_AFTER_MS = "retry-after-ms"

MAX_TEXT_CHARS = 500
"""Of a status message. It travels percent-encoded among the trailers, of which clients take 8 KiB."""
MAX_PARAM_CHARS = 64
"""Of a parameter's name."""

_VISIBLE = printable[:94].replace("%", "")
"""Characters that a metadata value has as they are."""

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


@dataclass(frozen=True, slots=True)
class CallError:
    """An error of a request: HTTP's status, and the members of OpenAI's envelope."""

    status: int
    message: str
    param: str | None
    code: str | None

    @classmethod
    def of(cls, error: APIError) -> "CallError":
        return cls(error.status, error.message, error.param, error.code)

    @property
    def text(self) -> str:
        """The status message, cut to `MAX_TEXT_CHARS`: a status has no field for the parameter, so the message starts
        with its name."""
        is_named = self.param is None or self.param in self.message
        text = self.message if is_named else f"{self.param}: {self.message}"
        return text if len(text) <= MAX_TEXT_CHARS else f"{text[: MAX_TEXT_CHARS - 1]}…"


Trailers = tuple[tuple[str, str], ...]


def code_of(status: int) -> grpc.StatusCode:
    """The code of an HTTP status from 400 on."""
    other = grpc.StatusCode.INVALID_ARGUMENT if status < 500 else grpc.StatusCode.INTERNAL
    return _CODES.get(status, other)


def metadata_of_headers(headers: Mapping[str, str]) -> Trailers:
    """The headers of a response that gRPC's clients get: the request's id, when to retry, the limits' states."""
    return tuple((name, value) for name, value in headers.items() if name.startswith((RETRY_AFTER, "x-")))


def trailers_of(error: CallError, headers: Mapping[str, str]) -> Trailers:
    """Trailing metadata of an error: headers, OpenAI's error code, and the parameter's name, cut to `MAX_PARAM_CHARS`
    and percent-encoded where it has characters that metadata cannot have: a client may give any name."""
    param = error.param and quote(error.param[:MAX_PARAM_CHARS], safe=_VISIBLE)
    marks = (("error-code", error.code), ("error-param", param))
    return (*metadata_of_headers(headers), *((name, value) for name, value in marks if value))


def api_error_of(error: Exception) -> APIError:
    """The typed error, or the one that reveals nothing of an unexpected one."""
    return as_api_error(error) or internal_error()
