"""Maps exceptions to HTTP errors: status, OpenAI's type and code, and OpenAI's envelope."""

from collections.abc import Mapping

import orjson
from starlette.exceptions import HTTPException

from engine.errors import (
    AdapterUnavailable,
    EngineError,
    EngineUnavailable,
    GrammarGaveUp,
    InvalidParameter,
    TooManyGrammars,
    UnservableRequest,
)
from engine.text.chat_template import ChatTemplateError
from engine.text.least_tokens import TooManyTokens
from gateway.admission import QuotaExceeded, StoreAway
from gateway.admission.errors import in_words
from gateway.billing.errors import NoPrice
from gateway.http.rate_headers import rate_headers, retry_headers
from gateway.metering.journal.journal import JournalUnavailable
from gateway.sessions.errors import SessionBusy, SessionStoreAway, TooManyWaitingTurns, UnreadableHistory
from gateway.tenancy.errors import InvalidKey, StoreUnavailable, TenantSuspended

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

CLIENT_CLOSED_REQUEST = 499
"""Logged and recorded, never sent: the client disconnected before the response started (nginx's status)."""

_GRAMMARS_RETRY_MS = 2000
"""Estimated time until a tenant's queue of grammars has room."""

MAX_TEMPLATE_ERROR_CHARS = 500
"""Bound on a template's error message, which may contain the conversation."""


class APIError(Exception):
    """An error response. `param` is the path of the invalid parameter in the client's body.

    `limit`: scope, name and size of the limit that rejected the request.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        limit: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.limit = limit

    def envelope(self) -> bytes:
        """`{"error": {"message", "type", "param", "code"}}`, with `limit` where a limit rejected the request."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error if self.limit is None else error | {"limit": self.limit}})


class ClientGone(Exception):
    """The client disconnected before the response was complete."""


def invalid(param: str | None, message: str, code: str | None = "invalid_value") -> APIError:
    return APIError(400, message, param=param, code=code)


def longer_than_window(param: str, window: int, tokens: str) -> APIError:
    """The error for a prompt of `tokens` tokens, such as "3000" or "at least 3000".

    The message is OpenAI's and vLLM's: proxies match on it.
    """
    message = (
        f"This model's maximum context length is {window} tokens. However, your {param} resulted in {tokens} tokens. "
        f"Please reduce the length of the {param}."
    )
    return invalid(param, message, "context_length_exceeded")


def template_refusal(error: ChatTemplateError, param: str) -> APIError:
    """An error of the chat template. `param`: the parameter that the messages came from."""
    return invalid(param, str(error)[:MAX_TEMPLATE_ERROR_CHARS])


def as_api_error(error: Exception) -> APIError | None:
    """The response to a typed error; None for an unexpected one."""
    match error:
        case APIError():
            return error
        case InvalidParameter():
            return invalid(error.param, str(error))
        case UnservableRequest() | TooManyTokens():
            return APIError(400, str(error), code="context_length_exceeded")
        case ChatTemplateError():
            return template_refusal(error, "messages")
        case GrammarGaveUp():
            return invalid(error.param, str(error))
        case TooManyGrammars():
            return APIError(
                429, str(error), type=RATE_LIMIT, code="rate_limit_exceeded", headers=retry_headers(_GRAMMARS_RETRY_MS)
            )
        case AdapterUnavailable():
            return APIError(
                503,
                "The adapter of this model could not be loaded in time. Please retry in a few seconds.",
                type=SERVER_ERROR,
                param="model",
                code="adapter_unavailable",
                headers={"retry-after": "5"},
            )
        case EngineUnavailable():
            return APIError(
                503,
                "The engine is being started again. Please retry in a few seconds.",
                type=SERVER_ERROR,
                code="engine_unavailable",
                headers={"retry-after": "5"},
            )
        case EngineError():
            return APIError(
                500,
                "The model failed to process the request. Please retry.",
                type=SERVER_ERROR,
                code="engine_error",
            )
        case TenantSuspended():
            return APIError(
                403,
                "This account is suspended. Its API keys are valid again when the operator resumes it.",
                code="tenant_suspended",
            )
        case InvalidKey():
            return APIError(
                401,
                "Incorrect API key provided. Send it as `Authorization: Bearer <key>` or `x-api-key: <key>`.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        case StoreUnavailable():
            return APIError(
                503,
                "API keys cannot be verified at the moment. Please retry in a few seconds.",
                type=SERVER_ERROR,
                code="service_unavailable",
                headers={"retry-after": "5"},
            )
        case QuotaExceeded():
            return _quota_error(error)
        case StoreAway():
            return APIError(
                503,
                _unchecked(error),
                type=SERVER_ERROR,
                code="service_unavailable",
                headers={"retry-after": "5"},
            )
        case NoPrice():
            return APIError(
                503,
                "This model is temporarily unavailable: it has no price in effect.",
                type=SERVER_ERROR,
                param="model",
                code="model_not_priced",
            )
        case JournalUnavailable():
            return APIError(
                503,
                "Usage cannot be recorded at the moment. Please retry in a few seconds.",
                type=SERVER_ERROR,
                code="service_unavailable",
                headers={"retry-after": "5"},
            )
        case SessionBusy():
            return APIError(
                409,
                "Another request is using this session. Please retry when it has completed.",
                param="session_id",
                code="session_busy",
                headers=retry_headers(1000),
            )
        case TooManyWaitingTurns():
            return APIError(
                429,
                "Too many requests of this account wait for their sessions. Please retry when some have completed.",
                type=RATE_LIMIT,
                param="session_id",
                code="too_many_waiting_turns",
                headers=retry_headers(1000),
            )
        case SessionStoreAway():
            return APIError(
                503,
                "Sessions and stored responses are temporarily unavailable. Please retry in a few seconds.",
                type=SERVER_ERROR,
                code="service_unavailable",
                headers={"retry-after": "5"},
            )
        case UnreadableHistory():
            return APIError(
                500,
                "The stored history of this session cannot be read. Delete the session to start a new one.",
                type=SERVER_ERROR,
                param="session_id",
                code="session_unreadable",
            )
        case HTTPException():
            return _routing_error(error)
        case _:
            return None


def internal_error() -> APIError:
    """The response to an unexpected error. It reveals no detail."""
    return APIError(
        500,
        "The server had an error while processing your request.",
        type=SERVER_ERROR,
        code="internal_error",
    )


SHUTTING_DOWN = "shutting_down"


def shutting_down() -> APIError:
    """The response to new requests while the server drains, and to those that its deadline cuts off."""
    return APIError(
        503,
        "The server is shutting down. Please retry your request.",
        type=SERVER_ERROR,
        code=SHUTTING_DOWN,
        headers={"retry-after": "1", "connection": "close"},
    )


def _unchecked(error: StoreAway) -> str:
    if error.scope is None:
        return "Rate limits cannot be checked at the moment. Please retry in a few seconds."
    return f"The limit on {in_words(error.scope)} cannot be checked at the moment. Please retry in a few seconds."


def _quota_error(error: QuotaExceeded) -> APIError:
    measure = error.scope.measure
    return APIError(
        429,
        str(error),
        type="insufficient_quota" if error.code == "insufficient_quota" else RATE_LIMIT,
        code=error.code,
        headers=rate_headers(error.states) | retry_headers(error.retry_after_ms),
        limit={"scope": error.scope.kind.value, "name": measure.value, "limit": error.limit},
    )


def _routing_error(error: HTTPException) -> APIError:
    """The router raises 404 and 405 only."""
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    message = {404: "Unknown request URL.", 405: "Method not allowed for this URL."}.get(
        error.status_code, error.detail
    )
    return APIError(error.status_code, message, code=code, headers=error.headers)
