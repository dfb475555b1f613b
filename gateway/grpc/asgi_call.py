"""One request of a gRPC call as an ASGI application sees it.

gRPC is HTTP/2 with messages for bodies, so scope, disconnect and errors are HTTP's. Only the bodies differ: the
request's message is in the scope, and each body that the application sends with status 200 is one message.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from google.protobuf.message import Message
from starlette.types import ASGIApp, Scope
from starlette.types import Message as Event

from gateway.grpc.call_context import Metadata
from gateway.grpc.statuses import CallError
from gateway.http.errors import ClientGone

MESSAGE = "turnpike.grpc_message"
"""Member of the scope."""


class AsgiCall:
    """Run it in a task of its own: the application then ends in good order after a cancelled call, as after an HTTP
    client's disconnect."""

    def __init__(
        self,
        path: str,
        metadata: Metadata,
        message: Message,
        write: Callable[[bytes], Awaitable[bool]] | None = None,
    ) -> None:
        """`write` sends a message, and returns whether it was sent; None: the last one is kept in `body`."""
        self.body = b""
        self.error: CallError | None = None
        self.headers: Mapping[str, str] = {}
        """Of the response: initial metadata, or trailers of an error."""
        self._write = write
        self._status = 0
        self._gone = asyncio.Event()
        self._scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "2",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode("latin-1"), _octets(value)) for name, value in metadata],
            MESSAGE: message,
        }

    @property
    def is_gone(self) -> bool:
        """Whether the client has gone."""
        return self._gone.is_set()

    async def run(self, app: ASGIApp) -> None:
        """Serve the request to its end, its bill included."""
        await app(self._scope, self._receive, self._send)

    def hang_up(self) -> None:
        """The client has cancelled, is gone, or its deadline has passed: compute no more. Idempotent."""
        self._gone.set()

    async def _receive(self) -> Event:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: Event) -> None:
        if event["type"] == "http.response.start":
            self._status = event["status"]
            self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event["headers"]}
            return
        body: bytes = event.get("body", b"")
        if self._status >= 400:
            self.error = _error(self._status, body)
        elif self._write is None:
            self.body = body or self.body
        elif body and (self.is_gone or not await self._write(body)):
            raise ClientGone


def _error(status: int, body: bytes) -> CallError:
    error: dict[str, Any] = orjson.loads(body)["error"]
    return CallError(status, error["message"], error["param"], error["code"])


def _octets(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
