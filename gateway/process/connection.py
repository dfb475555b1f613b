"""A client's connection: what of a request it takes, and how little of an answer lies in it untaken.

**Taken.** Between two answers a client has `MAX_HEAD_SECONDS` to send what is left of the last request and the head of
the next one. Bytes that come to nothing (a head without end, trailers, chunk extensions, blank lines) are bounded by
`MAX_HEAD_BYTES`, to within one read; so are requests that wait behind a running one, by `MAX_PIPELINED_REQUESTS`. What
is over a bound, or is not HTTP, is answered in the API's envelope, and the connection ends. Nobody is upgraded: the
wish is overlooked, as RFC 9110 (7.8) lets a server do, and the request served in HTTP/1.1. While the server drains, a
connection ends with its answer, and says so.

**Untaken.** What was handed to a connection counts as sent, and is billed. So a client that stops to read, or hangs up,
is billed for what lies in its buffers: `WRITE_BUFFER_BYTES` and one write more in this process, and what the kernel
takes for a socket with `listener.SEND_BUFFER_BYTES`. Left to itself the kernel takes megabytes. One that takes nothing
for `MAX_STALLED_SECONDS` is cut off; nothing is said to it, as it would not read that either.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import httptools
import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.http.bounds import MAX_HEAD_BYTES, MAX_HEAD_SECONDS, MAX_PIPELINED_REQUESTS, MAX_STALLED_SECONDS
from gateway.http.drain import Drain
from gateway.http.errors import APIError
from gateway.http.middleware import headers_too_large, new_request_id

WRITE_BUFFER_BYTES = 16 * 1024
"""With more than this unwritten, an answer waits."""

LINGER_SECONDS = 2.0
"""What a refused client still sends is read for so long: closed at once, the connection would be reset, and the
refusal lost."""

_log = structlog.get_logger("turnpike.connection")


class Connection(HttpToolsProtocol):
    """uvicorn's, with bounds.

    Invariant: a deadline runs just while no answer is under way, so no connection is held for nothing.
    """

    def __init__(self, *args: Any, drain: Drain, stall_seconds: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._drain = drain
        self._stall_seconds = stall_seconds
        self._stall: asyncio.TimerHandle | None = None
        """Runs while the client takes nothing. (One timer a stall, and none around each write.)"""
        self._serving: RequestResponseCycle | None = None
        """The request whose answer is under way. (uvicorn's `cycle` is the one that arrived last.)"""
        self._in_head = False
        self._in_body = False
        self._idle_bytes = 0
        """Received since a head or a piece of a body was complete."""
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
        if self._in_head:  # and not a trailer, which would join the headers of a request that is being served
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._serving = cycle
        self._expect_nothing()
        if self._drain.begun:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)

    def end_with_answer(self) -> None:
        """Nothing comes after the answer that is under way. An idle connection stays, for whoever is about to ask."""
        if self._serving is not None:
            self._serving.keep_alive = False

    def cut_if_unread(self) -> None:
        """Cut off a client that does not take what was said to it."""
        if self.flow.write_paused:
            self.transport.abort()

    def _parse(self, data: bytes) -> None:
        """Raises: HttpParserError; its context is an `APIError` where a bound is why."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # The parser takes what follows for another protocol. It is the request's body, or the next request.
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it

    def _head_without_upgrade(self) -> bytes:
        """Raises: HttpParserError for CONNECT, which has no meaning without."""
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
        """What a proxy before us may have read in another way (RFC 9112, 3.2 and 6.1).

        Raises: APIError.
        """
        version, names = self.parser.get_http_version(), [name for name, _ in self.headers]
        hosts = names.count(b"host")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            raise APIError(400, "A request must have exactly one Host header.", code="invalid_http")
        if version == "1.0" and b"transfer-encoding" in names:
            raise APIError(400, "Transfer-Encoding is not allowed in HTTP/1.0.", code="invalid_http")

    def _refuse(self, error: APIError) -> None:
        """Take nothing more. Whoever asked before is answered first, in full, and this not at all."""
        self._refused = True
        serving = self._serving
        if serving is not None and (serving is not self.cycle or not self._in_body):
            if self._in_body:
                self.pipeline.popleft()  # the newest, whose body will never be complete
            last = self.pipeline[0][0] if self.pipeline else serving
            last.keep_alive = False
            # They wait with reading paused. What is still sent is dropped: unread, it would reset the connection, and
            # take answers with it.
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
        self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))

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
            self._begin_stall()  # it closes when the client has taken the rest


def server_config(
    app: ASGIApp, drain: Drain, *, trusted_proxies: Sequence[str] = (), stall_seconds: float = MAX_STALLED_SECONDS
) -> uvicorn.Config:
    """How this program serves HTTP. `trusted_proxies` are the addresses and networks that `X-Forwarded-For` and
    `X-Forwarded-Proto` are believed of; left to itself uvicorn believes this machine."""
    return uvicorn.Config(
        app,
        http=partial(Connection, drain=drain, stall_seconds=stall_seconds),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
    )


def _cut_off(cycle: RequestResponseCycle) -> None:
    """Tell who serves it that nobody is there any more."""
    cycle.disconnected = True
    cycle.message_event.set()


def _not_http() -> APIError:
    return APIError(400, "Malformed HTTP/1.1 request.", code="invalid_http")
