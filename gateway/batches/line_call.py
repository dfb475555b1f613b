"""A line as a call of its endpoint: the same path as a client's request, from its parsed body on."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import orjson
import structlog
from starlette.types import Message, Scope

from gateway.http.access import Endpoint, require_scope
from gateway.http.error_format import format_error
from gateway.http.errors import APIError, ClientGone, as_api_error, internal_error
from gateway.http.middleware import new_request_id
from gateway.http.request_state import RequestState, begin_request
from gateway.refusals.refusal import Refusal
from gateway.tenancy.errors import InvalidKey
from gateway.tenancy.records import Principal

_log = structlog.get_logger("turnpike.batches")


class LineAborted(Exception):
    """The line was aborted before it had an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a call: status, headers and body of the HTTP response. `refusal`: it was refused."""

    request_id: str
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal | None = None

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the same call may succeed; None: it will not."""
        stated = self.headers.get("retry-after", "")
        return float(stated) if stated.isdecimal() else None


MakeRefusal = Callable[[str, Scope, RequestState], Refusal | None]
"""`gateway.http.middleware.refusal_of`."""


class LineCaller:
    """Calls the endpoints of lines. `endpoints`: by path."""

    def __init__(self, endpoints: Mapping[str, Endpoint], refusal_of: MakeRefusal) -> None:
        self.endpoints = endpoints
        self._refusal_of = refusal_of

    async def call(self, path: str, body: Mapping[str, object], caller: Principal, aborted: asyncio.Event) -> Answer:
        """Answer a body for a caller. An error is an answer, too.

        Raises:
            LineAborted: `aborted` was set before, or the key is not in use any more.
        """
        request_id = new_request_id()
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "path_params": {},
        }
        state = begin_request(scope, request_id)
        state.authenticate(caller)
        structlog.contextvars.bind_contextvars(request_id=request_id, tenant=caller.tenant_name)
        exchange = _Exchange(orjson.dumps(body), aborted)
        try:
            require_scope(caller, self.endpoints[path].scopes)
            await self.endpoints[path].app(scope, exchange.receive, exchange.send)
        except (ClientGone, InvalidKey):  # a key that ends ends the batch, or lets it wait: see `BatchRun`
            raise LineAborted from None
        except Exception as error:
            return self._refused(error, scope, state)
        return Answer(request_id, exchange.status, exchange.answer, exchange.headers)

    def _refused(self, error: Exception, scope: Scope, state: RequestState) -> Answer:
        answer = as_api_error(error)
        if answer is None:
            _log.error("unexpected error", exc_info=error)
            answer = internal_error()
        state.error, state.error_status = answer.code, answer.status
        _note_limit(state, answer)
        state.status, body = format_error(scope, answer)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        refusal = self._refusal_of(scope["path"], scope, state)
        return Answer(state.request_id, state.status, body, headers, refusal)


def _note_limit(state: RequestState, error: APIError) -> None:
    if error.limit is not None:
        state.limit_name = f"{error.limit['scope']}.{error.limit['name']}"


class _Exchange:
    """The ASGI callables of one call."""

    def __init__(self, body: bytes, aborted: asyncio.Event) -> None:
        self._body: bytes | None = body
        self._aborted = aborted
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answer = b""

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._aborted.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message.get("headers", ())
            }
        else:
            self.answer += message.get("body", b"")
