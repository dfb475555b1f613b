"""Reads the output of a call for as long as the client is connected."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from gateway.generation.engine_client import OutputStream
from gateway.http.errors import ClientGone


@asynccontextmanager
async def reading(stream: OutputStream, receive: Receive) -> AsyncIterator[OutputStream]:
    """Submit a call and read it for the client behind `receive`. A disconnect ends the call at once, and its reader
    gets `ClientGone`. Nothing of it is left after the block."""
    async with stream:
        watcher = asyncio.create_task(_watch(receive, stream))
        try:
            yield stream
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])


async def _watch(receive: Receive, stream: OutputStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.fail(ClientGone())
