"""Errors of an upstream, as the client of this gateway gets them. None contains a secret or an address."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.generation.shed import ModelUnavailable
from gateway.http.errors import SERVER_ERROR, APIError
from gateway.http.rate_headers import retry_headers

MAX_MESSAGE_CHARS = 500
MAX_LOGGED_BYTES = 200
MAX_RETRY_AFTER_S = 60.0
DEFAULT_RETRY_AFTER_S = 1.0

_CLIENT_FAULTS = {400: 400, 413: 413, 422: 400}
"""The server's statuses for a request that it refuses, and the status of the answer."""
_CONFIGURATION_FAULTS = frozenset((401, 402, 403, 404, 405, 407, 410))
"""Statuses that mean that the settings of the upstream are wrong."""
_WINDOW = re.compile(r"maximum context length|context_length_exceeded|context window|max_model_len", re.IGNORECASE)


class UpstreamFailed(APIError):
    """The server failed on a request, or sent what is no answer. `status`: as the client gets it."""


class UpstreamUnavailable(ModelUnavailable):
    """No answer has begun: the server cannot be reached, is overloaded, or has failed before its first byte.

    `retry_after_s`: as the server states it; None: it does not. `is_outage`: whether that counts against the server's
    health. `may_retry`: whether the same request may be sent again. `reason`: for the operator's log.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str,
        *,
        retry_after_s: float | None = None,
        is_outage: bool = True,
        may_retry: bool = True,
        reason: str = "",
    ) -> None:
        shown_s = DEFAULT_RETRY_AFTER_S if retry_after_s is None else retry_after_s
        headers = retry_headers(round(1000 * shown_s)) if status == 503 else {}
        super().__init__(status, message, type=SERVER_ERROR, param="model", code=code, headers=headers)
        self.retry_after_s = retry_after_s
        self.is_outage = is_outage
        self.may_retry = may_retry
        self.reason = reason or message


def unavailable(retry_after_s: float) -> UpstreamUnavailable:
    """The breaker is open: nothing is sent to the server."""
    return UpstreamUnavailable(
        503,
        "The model is temporarily unavailable. Please retry.",
        "model_unavailable",
        retry_after_s=retry_after_s,
        is_outage=False,
        may_retry=False,
    )


def unreachable(reason: str) -> UpstreamUnavailable:
    """No connection, or it broke before the first byte of the answer."""
    message = "The model's server cannot be reached."
    return UpstreamUnavailable(502, message, "upstream_unreachable", reason=reason)


def timed_out(*, connecting: bool) -> UpstreamUnavailable:
    """No connection or no first byte in time. What the server may be computing is not sent a second time."""
    message = "The model's server did not answer in time."
    return UpstreamUnavailable(504, message, "upstream_timeout", may_retry=connecting)


def lost() -> UpstreamFailed:
    """The connection ended or went silent in the middle of an answer."""
    return UpstreamFailed(
        502, "The connection to the model's server was lost.", type=SERVER_ERROR, code="upstream_connection_lost"
    )


def no_answer() -> UpstreamFailed:
    """The server sent something else than its API promises."""
    return UpstreamFailed(
        502, "The model's server sent an invalid response.", type=SERVER_ERROR, code="upstream_invalid_response"
    )


def of_event(stated: Any) -> APIError:
    """An error event within a stream."""
    code = stated.get("code") if isinstance(stated, Mapping) else None
    if isinstance(code, int) and code in _CLIENT_FAULTS:
        return _client_fault(code, stated, ())
    return UpstreamFailed(502, "The model's server failed.", type=SERVER_ERROR, code="upstream_error")


def of_response(status: int, headers: Mapping[str, str], body: bytes, secrets: tuple[str, ...]) -> APIError:
    """The error of a response other than 200. `secrets`: removed from a message that is passed on."""
    if status in _CLIENT_FAULTS:
        return _client_fault(status, _error_of(body), secrets)
    reason = f"status {status}: {body[:MAX_LOGGED_BYTES].decode(errors='replace')}"
    if status in _CONFIGURATION_FAULTS or status < 400:
        return UpstreamUnavailable(
            502,
            "The model's server refuses this gateway. Its operator can see why.",
            "upstream_misconfigured",
            is_outage=False,
            may_retry=False,
            reason=reason,
        )
    if status in (429, 503):
        wait_s = retry_after_s(headers)
        return UpstreamUnavailable(
            503,
            "The model's server is overloaded. Please retry.",
            "upstream_overloaded",
            retry_after_s=wait_s,
            is_outage=status == 503,
            may_retry=wait_s is None,
            reason=reason,
        )
    if status in (408, 504):
        return timed_out(connecting=False)
    return UpstreamUnavailable(502, "The model's server failed.", "upstream_error", reason=reason)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds of `Retry-After`, bounded; None without one in seconds."""
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(MAX_RETRY_AFTER_S, seconds) if seconds >= 0 else None


def _error_of(body: bytes) -> Any:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(parsed, Mapping):
        return None
    return parsed.get("error", parsed)  # vLLM's former versions have no member `error`


def _client_fault(status: int, stated: Any, secrets: tuple[str, ...]) -> APIError:
    """A request that the server refuses, with the server's own message."""
    members = stated if isinstance(stated, Mapping) else {}
    message = members.get("message")
    if not isinstance(message, str) or not message:
        message = "The model's server refuses this request."
    for secret in secrets:
        message = message.replace(secret, "***")
    param = members.get("param")
    code = "context_length_exceeded" if _WINDOW.search(message) else members.get("code")
    return APIError(
        _CLIENT_FAULTS[status],
        message[:MAX_MESSAGE_CHARS],
        param=param[:MAX_MESSAGE_CHARS] if isinstance(param, str) else None,
        code=code[:64] if isinstance(code, str) else "invalid_value",
    )
