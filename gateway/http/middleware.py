"""Pure ASGI middleware, from the outside in: `ErrorMiddleware`, `MountByPrefix`, `Authorisation`, `BodyLimit`.

`ErrorMiddleware` is the last resort: nothing raised inside it reaches the server.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.access import AccessPolicy
from gateway.http.anthropic_errors import OVERLOADED_STATUS
from gateway.http.bounds import MAX_HEADER_BYTES, MAX_HEADERS, MAX_TARGET_CHARS
from gateway.http.error_format import request_id_headers, send_error
from gateway.http.errors import (
    CLIENT_CLOSED_REQUEST,
    SHUTTING_DOWN,
    APIError,
    ClientGone,
    as_api_error,
    internal_error,
    shutting_down,
)
from gateway.http.request_state import RequestState, begin_request, request_state
from gateway.refusals.refusal import Kind, Refusal
from gateway.telemetry.outcomes import RequestOutcome, RequestOutcomes
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.errors import InvalidKey
from gateway.tenancy.records import Principal

OPEN_PATHS = frozenset(
    ("/", "/health", "/healthz", "/readyz", "/version", "/metrics", "/openapi.json", "/docs", "/docs/reference.css")
)
"""Paths that need no key. Every other path needs one, also a path that does not exist."""

GRPC_PREFIX = "/inference.GRPCInferenceService/"
"""The path of a gRPC method begins with its service."""

CLIENT_GONE = "client_gone"
"""Error code of a request whose client disconnected, before or after the response started."""

_OVERLOADED_STATUSES = (429, OVERLOADED_STATUS)
_SANE_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_MAX_LOGGED_PATH = 200

_log = structlog.get_logger("turnpike.access")


class ErrorMiddleware:
    """Sets each request's id, writes its access log line, and turns every exception into an error response. The one
    place where refusals are seen: `on_refusal` gets each.

    Every response has `x-request-id` (the client's own where it is valid) and `openai-processing-ms`, the time to the
    start of the response. The log line never contains a query, a header or a body.
    """

    def __init__(
        self,
        app: ASGIApp,
        outcomes: RequestOutcomes,
        on_refusal: Callable[[Refusal], None],
        access: AccessPolicy,
    ) -> None:
        self._app = app
        self._outcomes = outcomes
        self._on_refusal = on_refusal
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        state = begin_request(scope, _request_id(scope))
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=state.request_id)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                state.status = message["status"]
                message["headers"] = [
                    *message.get("headers", ()),
                    *request_id_headers(scope, state.request_id),
                    (b"openai-processing-ms", b"%d" % round(state.elapsed_ms)),
                ]
            await send(message)

        try:
            _require_small_head(scope)
            await self._app(scope, receive, send_marked)
        except asyncio.CancelledError:  # the deadline of a shutdown: the error is sent, and the task ends here
            state.error = shutting_down().code
            if state.status is None:
                with suppress(ClientGone):
                    await send_error(scope, send_marked, shutting_down())
        except ClientGone:
            state.error = CLIENT_GONE
            state.status = state.status or CLIENT_CLOSED_REQUEST
        except Exception as error:
            await _answer(scope, send_marked, error)
        finally:
            if is_of_tenants(scope["path"]):
                self._outcomes.note(outcome_of(state))
            if (refusal := refusal_of(self._access.endpoint_of(scope["path"]), scope, state)) is not None:
                self._on_refusal(refusal)
            _log_access(scope, state)


class MountByPrefix:
    """Routes paths below `prefix` to the application `within`, and all others to the next one.

    Only `scope["path"]` decides, so authentication and routing cannot disagree on a path.
    """

    def __init__(self, app: ASGIApp, prefix: str, within: ASGIApp) -> None:
        self._app = app
        self._prefix = prefix
        self._within = within

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        here = scope["type"] == "http" and (scope["path"] + "/").startswith(self._prefix + "/")
        await (self._within if here else self._app)(scope, receive, send)


class Authorisation:
    """Passes requests on open paths, and those with a valid key whose scopes allow the path. Only `scope["path"]`
    decides."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator[Principal], access: AccessPolicy) -> None:
        self._app = app
        self._authenticator = authenticator
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            state, presented = request_state(scope), presented_key(Headers(scope=scope))
            try:
                principal = await self._authenticator.authenticate(presented)
            except InvalidKey as error:
                if isinstance(error.owner, Principal):
                    state.identify(error.owner)
                    structlog.contextvars.bind_contextvars(tenant=error.owner.tenant_name)
                raise
            state.authenticate(principal)
            structlog.contextvars.bind_contextvars(tenant=principal.tenant_name)
            self._access.require(principal, scope["path"])
        await self._app(scope, receive, send)


class BodyLimit:
    """Rejects a body over the bound, by its content-length and by its bytes. `receive` raises `APIError` 413. `larger`:
    bounds of paths that have their own."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, larger: Mapping[str, int] = MappingProxyType({})) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        max_body_bytes = self._larger.get(scope["path"], self._max_body_bytes)
        stated = Headers(scope=scope).get("content-length", "0")
        if stated.isdecimal() and (len(stated) > 18 or int(stated) > max_body_bytes):
            raise _body_too_large(max_body_bytes)
        received_bytes = 0

        async def receive_bounded() -> Message:
            nonlocal received_bytes
            message = await receive()
            received_bytes += len(message.get("body", b""))
            if received_bytes > max_body_bytes:
                raise _body_too_large(max_body_bytes)
            return message

        await self._app(scope, receive_bounded, send)


def _body_too_large(max_body_bytes: int) -> APIError:
    """The server reads and drops the rest of the body for a while: closing at once would reset the connection before
    the client reads the error."""
    message = f"Request body too large. The maximum is {max_body_bytes} bytes."
    return APIError(413, message, code="request_too_large")


def presented_key(headers: Headers) -> str:
    """The key in `Authorization: Bearer`, or else in `x-api-key`.

    Raises:
        InvalidKey: neither header is present.
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


def outcome_of(state: RequestState) -> RequestOutcome:
    """Outcome of a request, for the availability objective."""
    status = state.status
    if state.error == CLIENT_GONE:
        return RequestOutcome.CLIENT_GONE
    if status in _OVERLOADED_STATUSES or (status == 503 and state.error == SHUTTING_DOWN):
        return RequestOutcome.TURNED_AWAY
    if status is None or status >= 500:
        return RequestOutcome.FAILED
    if status >= 400:
        return RequestOutcome.REFUSED
    if state.error is None:
        return RequestOutcome.ANSWERED
    return RequestOutcome.REFUSED if state.error_status in range(400, 500) else RequestOutcome.FAILED


def refusal_of(endpoint: str, scope: Scope, state: RequestState) -> Refusal | None:
    """The refusal of a request that was answered with an error; None if it has a usage record, which says how it ended,
    if its client got no answer, or if it is neither on a tenants' path nor a tenant's."""
    status, owner = state.status, state.owner
    if status is None or status < 400 or state.metered or state.error == CLIENT_GONE:
        return None
    if owner is None and not is_of_tenants(scope["path"]):
        return None
    tenant_id, tenant_name, key_id, tier = (
        ("", "", "", "") if owner is None else (owner.tenant_id, owner.tenant_name, owner.key_id, owner.tier)
    )
    code = state.error or "unknown_error"
    kind = Kind(tenant_id, key_id, tier, state.model, endpoint, outcome_of(state), status, code, state.limit_name)
    return Refusal(time.time_ns() // 1_000_000, state.request_id, tenant_name, kind)


def is_of_tenants(path: str) -> bool:
    """Whether a path is below those of the tenants' API: /v1/, and the methods of gRPC's `package.Service`."""
    return path.startswith(("/v1/", GRPC_PREFIX))


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def headers_too_large() -> APIError:
    return APIError(
        431,
        f"Request headers too large. The maximum is {MAX_HEADERS} headers and {MAX_HEADER_BYTES} bytes in total.",
        code="headers_too_large",
    )


def _request_id(scope: Scope) -> str:
    stated = Headers(scope=scope).get("x-request-id", "")
    return stated if _SANE_REQUEST_ID.fullmatch(stated) else new_request_id()


def _require_small_head(scope: Scope) -> None:
    if len(scope["path"]) + len(scope["query_string"]) > MAX_TARGET_CHARS:
        raise APIError(414, f"URL too long. The maximum is {MAX_TARGET_CHARS} characters.", code="uri_too_long")
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS or sum(len(name) + len(value) for name, value in headers) > MAX_HEADER_BYTES:
        raise headers_too_large()


async def _answer(scope: Scope, send: Send, error: Exception) -> None:
    """Send the error, unless the response has started. Log server errors, unexpected ones with a stack trace."""
    state = request_state(scope)
    answer = as_api_error(error)
    if answer is None:
        _log.error("unexpected error", exc_info=error)
        answer = internal_error()
    elif answer.status >= 500:
        _log.error("request failed", reason=str(error))
    state.error, state.error_status = answer.code, answer.status
    if answer.limit is not None:
        state.limit_name = f"{answer.limit['scope']}.{answer.limit['name']}"
    if state.status is None:
        with suppress(ClientGone):
            await send_error(scope, send, answer)


def _log_access(scope: Scope, state: RequestState) -> None:
    """Write the log line. The request's id and tenant are in the log's context."""
    _log.info(
        "request",
        method=scope["method"],
        path=scope["path"][:_MAX_LOGGED_PATH],
        status=state.status,
        error=state.error,
        duration_ms=round(state.elapsed_ms, 1),
        key_id=state.key_id,
    )
