"""HTTP/1.1 connection limits: time and size bounds on request heads, pipelining, and unread response bytes.

**Requests.** Between two responses a client has `MAX_HEAD_SECONDS` to send the rest of the last request and the head of
the next one. Bytes without effect (an endless head, trailers, chunk extensions, blank lines) are bounded by
`MAX_HEAD_BYTES`, up to one read; requests queued behind a running one by `MAX_PIPELINED_REQUESTS`. A request over a
bound, or malformed, gets an error in the API's envelope, and the connection closes. Upgrade requests are ignored, as
RFC 9110 (7.8) allows, and served in HTTP/1.1. While the server drains, a connection closes after its response, which
has `connection: close`.

**Responses.** Bytes handed to a connection count as sent and are billed; `send` raises `ClientGone` for those of a body
that were not, as the client went before or while they waited for it to read. A client that stops reading or disconnects
is billed for the bytes in its buffers: `WRITE_BUFFER_BYTES` plus one write in this process, and the kernel's buffer of
a socket with `listener.SEND_BUFFER_BYTES`, which would otherwise be megabytes. A client that reads nothing for
`MAX_STALLED_SECONDS` is disconnected without an error, which it would not read.

`uvicorn_internals` names what this uses beyond uvicorn's documented interface.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httptools
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http.bounds import MAX_HEAD_BYTES, MAX_HEAD_SECONDS, MAX_PIPELINED_REQUESTS, MAX_STALLED_SECONDS
from gateway.http.drain import Drain
from gateway.http.errors import APIError, ClientGone
from gateway.http.middleware import headers_too_large, new_request_id
from gateway.process.uvicorn_internals import check_uvicorn

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

WRITE_BUFFER_BYTES = 16 * 1024
"""High-water mark: with more unwritten bytes a response is paused."""

LINGER_SECONDS = 2.0
"""Time in which a rejected client's further bytes are read and dropped: closing at once would reset the connection
before the client reads the error."""

_log = structlog.get_logger("turnpike.connection")


class Connection(HttpToolsProtocol):
    """uvicorn's connection, with bounds.

    Invariant: a deadline runs whenever no request is being served, so no idle connection is kept.
    """

    def __init__(self, *args: Any, drain: Drain, stall_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._drain = drain
        self._stall_seconds = stall_seconds
        self._stall: asyncio.TimerHandle | None = None
        """Runs while the client reads nothing. (One timer per stall, none per write.)"""
        self._serving: RequestResponseCycle | None = None
        """The request that is being served. (uvicorn's `cycle` is the last one that arrived.)"""
        self._in_head = False
        self._in_body = False
        self._idle_bytes = 0
        """Bytes received since the last complete head or piece of a body."""
        self._deadline: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._expect_more(MAX_HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._end_stall()
        self.pipeline.clear()
        if self._serving is not None:
            _cut_off(self._serving)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._begin_stall()

    def resume_writing(self) -> None:
        self._end_stall()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unset_keepalive_if_required()
        self._idle_bytes += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError as error:
            reason = error.__context__
            self._refuse(reason if isinstance(reason, APIError) else _not_http())
        else:
            if self._idle_bytes > MAX_HEAD_BYTES:
                self._refuse(headers_too_large())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # not a trailer, which would join the headers of a running request
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.parser.should_upgrade():
            return
        if len(self.pipeline) >= MAX_PIPELINED_REQUESTS:
            raise APIError(400, "Too many pipelined requests on this connection.", code="too_many_pipelined")
        self._require_one_meaning()
        super().on_headers_complete()
        self._in_body, self._idle_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        self._idle_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._in_body:
            self._in_body, self._idle_bytes = False, 0
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._serving = None
        self._expect_more(MAX_HEAD_SECONDS)
        super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: "ASGI3Application") -> None:
        self._serving = cycle
        self._expect_nothing()
        if self._drain.begun:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, _with_known_end(app, cycle))

    def end_with_answer(self) -> None:
        """Close after the current response. An idle connection stays open for a request that may be on its way."""
        if self._serving is not None:
            self._serving.keep_alive = False

    def cut_if_unread(self) -> None:
        """Disconnect a client that does not read its response."""
        if self.flow.write_paused:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        """Raises: HttpParserError; its context is an `APIError` if a bound was exceeded."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # The parser expects another protocol after the head. The bytes are the body or the next request.
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn

    def _head_without_upgrade(self) -> bytes:
        """The head without its upgrade headers. Raises: HttpParserError for CONNECT, which requires an upgrade."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("no tunnels")
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(option for option in value.split(b",") if option.strip().lower() != b"upgrade")
            if name not in (b"upgrade", b"http2-settings"):
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _require_one_meaning(self) -> None:
        """Reject heads that a proxy may interpret differently (RFC 9112, 3.2 and 6.1).

        Raises: APIError.
        """
        version, names = self.parser.get_http_version(), [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise APIError(400, "A request must have exactly one Host header.", code="invalid_http")
        if version == "1.0" and b"transfer-encoding" in names:
            raise APIError(400, "Transfer-Encoding is not allowed in HTTP/1.0.", code="invalid_http")

    def _refuse(self, error: APIError) -> None:
        """Read no more requests. If earlier ones are running, serve them in full and close without this error."""
        self._refused = True
        serving = self._serving
        if serving is not None and (serving is not self.cycle or not self._in_body):
            if self._in_body:
                self.pipeline.popleft()  # the newest request, whose body stays incomplete
            last = self.pipeline[0][0] if self.pipeline else serving
            last.keep_alive = False
            # Queued requests pause reading. Resume it and drop the bytes: unread bytes would reset the connection and
            # lose responses.
            self.flow.resume_reading()
            return
        _log.info("request refused", status=error.status, error=error.code)
        if serving is not None:
            _cut_off(serving)
        if serving is None or not serving.response_started:
            self._write(error)
            self.transport.write_eof()
        self._expect_more(LINGER_SECONDS)

    def _write(self, error: APIError) -> None:
        body = error.envelope()
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            (b"x-request-id", new_request_id().encode()),
            (b"openai-processing-ms", b"0"),
        ]
        lines = [b"%b: %b\r\n" % header for header in headers]
        status_line = b"HTTP/1.1 %d %b\r\n" % (error.status, HTTPStatus(error.status).phrase.encode())
        self.transport.write(b"".join([status_line, *lines, b"\r\n", body]))

    def _expect_more(self, seconds: float) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(seconds, self._late)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _begin_stall(self) -> None:
        self._end_stall()
        self._stall = self.loop.call_later(self._stall_seconds, self.transport.abort)

    def _end_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _late(self) -> None:
        if self._in_head and not self._refused:
            self._refuse(APIError(408, "Timed out while reading the request headers.", code="request_timeout"))
        else:
            self.transport.close()
            self._begin_stall()  # closes when the client has read the rest


def server_config(
    app: ASGIApp,
    drain: Drain,
    *,
    trusted_proxies: Sequence[str] = (),
    stall_seconds: float = MAX_STALLED_SECONDS,
    connection: type[Connection] = Connection,
) -> uvicorn.Config:
    """uvicorn's configuration. `trusted_proxies`: addresses and networks whose `X-Forwarded-For` and
    `X-Forwarded-Proto` are trusted; uvicorn's default would trust this machine.

    Raises:
        OperatorError: the installed uvicorn is not supported.
    """
    check_uvicorn()
    return uvicorn.Config(
        app,
        http=partial(connection, drain=drain, stall_seconds=stall_seconds),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
    )


def _with_known_end(app: "ASGI3Application", cycle: RequestResponseCycle) -> "ASGI3Application":
    """The application with a `send` that raises `ClientGone` for a part of the body that is not written. uvicorn's
    drops it silently, so that it would be billed."""
    flow, write = cycle.flow, cycle.send

    async def send(message: Any) -> None:
        if flow.write_paused and not cycle.disconnected:
            await flow.drain()
        if cycle.disconnected and message["type"] == "http.response.body" and message.get("body"):
            raise ClientGone
        await write(message)  # without a pause, now that nothing waits

    async def served(scope: Any, receive: Any, _: Any) -> None:
        await app(scope, receive, send)

    return served


def _cut_off(cycle: RequestResponseCycle) -> None:
    """Signal the request's application that the client has disconnected."""
    cycle.disconnected = True
    cycle.message_event.set()


def _not_http() -> APIError:
    return APIError(400, "Malformed HTTP/1.1 request.", code="invalid_http")
