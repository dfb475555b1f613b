"""Pure ASGI middleware, from the outside in: `Envelope`, `Authorisation`, `BodyLimit`.

`Envelope` is the last resort: nothing raised inside it reaches the server.
"""

import asyncio
import re
import uuid

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.api.access import require_scope
from gateway.api.bounds import MAX_HEADER_BYTES, MAX_HEADERS
from gateway.api.errors import APIError, ClientGone, as_api_error, internal_error, send_error, shutting_down
from gateway.api.exchange import Exchange, begin_exchange, exchange_of
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.errors import InvalidKey
from gateway.tenancy.records import Principal

OPEN_PATHS = frozenset(("/healthz", "/readyz", "/metrics"))
"""All that answers without a key. A path that is not here needs one, whether it exists or not."""

CLIENT_CLOSED_REQUEST = 499
"""Logged for a client that hung up before its response started; nobody is sent it."""

_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_MAX_LOGGED_PATH = 200

_log = structlog.get_logger("turnpike.access")


class Envelope:
    """Gives each exchange its id and its log line, and every error its envelope.

    Every response carries `x-request-id` (the client's own where it is sane) and `openai-processing-ms`, the time
    to the start of the response. The log line never holds a query, a header or a body.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        exchange = begin_exchange(scope, _request_id(scope))
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=exchange.request_id)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", exchange.request_id.encode("latin-1")),
                    (b"openai-processing-ms", b"%d" % round(exchange.elapsed_ms)),
                ]
            await send(message)

        try:
            _require_small_headers(scope)
            await self._app(scope, receive, send_marked)
        except asyncio.CancelledError:
            if exchange.status is None:
                await send_error(send_marked, shutting_down())
            raise
        except ClientGone:
            exchange.error = "client_gone"
            exchange.status = exchange.status or CLIENT_CLOSED_REQUEST
        except Exception as error:
            await _answer(exchange, send_marked, error)
        finally:
            _log_access(scope, exchange)


class Authorisation:
    """Lets a request through on an open path, or with a key that opens and that is for the path. Looks at
    `scope["path"]` alone."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator[Principal]) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            presented = presented_key(Headers(scope=scope))
            principal = await self._authenticator.authenticate(presented)
            exchange_of(scope).principal = principal
            exchange_of(scope).key_id = principal.key_id
            structlog.contextvars.bind_contextvars(tenant=principal.tenant_name)
            require_scope(principal, scope["path"])
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses a body over the bound by what it says and by what it is. Raises `APIError` 413 from `receive`."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = Headers(scope=scope).get("content-length", "0")
        if stated.isdecimal() and (len(stated) > 18 or int(stated) > self._max_body_bytes):
            raise self._too_large()
        received_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > self._max_body_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_bounded, send)

    def _too_large(self) -> APIError:
        """The connection is closed, or the rest of the body would have to be read."""
        return APIError(
            413,
            f"The body must not be over {self._max_body_bytes} bytes.",
            code="request_too_large",
            headers={"connection": "close"},
        )


def presented_key(headers: Headers) -> str:
    """The key in `Authorization: Bearer`, or else in `x-api-key`.

    Raises:
        InvalidKey: there is neither.
    """
    authorization = headers.get("authorization")
    if authorization is None:
        key = headers.get("x-api-key", "")
    else:
        scheme, _, credentials = authorization.partition(" ")
        key = credentials if scheme.lower() == "bearer" else ""
    if not key.strip():
        raise InvalidKey("no key")
    return key.strip()


def _request_id(scope: Scope) -> str:
    stated = Headers(scope=scope).get("x-request-id", "")
    return stated if _SANE_REQUEST_ID.fullmatch(stated) else f"req_{uuid.uuid4().hex}"


def _require_small_headers(scope: Scope) -> None:
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise APIError(
            431,
            f"A request has at most {MAX_HEADERS} headers of {MAX_HEADER_BYTES} bytes together.",
            code="headers_too_large",
            headers={"connection": "close"},
        )


async def _answer(exchange: Exchange, send: Send, error: Exception) -> None:
    """Answer with the error's envelope, unless a response has begun. Ours are logged, unexpected ones with a stack."""
    answer = as_api_error(error)
    if answer is None:
        _log.error("unexpected error", exc_info=error)
        answer = internal_error()
    elif answer.status >= 500:
        _log.error("request failed", reason=str(error))
    exchange.error = answer.code
    if exchange.status is None:
        await send_error(send, answer)


def _log_access(scope: Scope, exchange: Exchange) -> None:
    """The request's id and tenant are in the log's context."""
    _log.info(
        "request",
        method=scope["method"],
        path=scope["path"][:_MAX_LOGGED_PATH],
        status=exchange.status,
        error=exchange.error,
        duration_ms=round(exchange.elapsed_ms, 1),
        key_id=exchange.key_id,
    )
