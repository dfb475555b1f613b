"""A client's connection, and how little of an answer lies in it that the client has not taken.

What was handed to a connection counts as sent, and is billed. So a client that stops to read, or hangs up, is billed
for what lies in its buffers: `WRITE_BUFFER_BYTES` and one write more in this process, and what the kernel takes for a
socket with `listener.SEND_BUFFER_BYTES`. Left to itself the kernel takes megabytes.
"""

import asyncio

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

WRITE_BUFFER_BYTES = 16 * 1024
"""With more than this unwritten, an answer waits."""


class Connection(HttpToolsProtocol):
    """uvicorn's, with a smaller buffer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)


def server_config(app: ASGIApp, *, shutdown_deadline_s: int) -> uvicorn.Config:
    """How this program serves HTTP."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=shutdown_deadline_s,
    )
