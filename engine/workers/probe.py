"""Asks a worker what it serves, by one short connection."""

import asyncio
import ssl

from engine.workers.frames import ConnectionEnded, received
from engine.workers.messages import Failed, Ready, decode_from_worker
from engine.workers.remote_link import parse_address
from engine.workers.sources import Member


async def probe(member: Member, context: ssl.SSLContext | None, seconds: float) -> Ready:
    """The greeting of a worker: what it says of itself when a client connects. `context` None: without TLS.

    Raises:
        OSError: no worker listens, or it shows another certificate (`ssl.SSLError`).
        TimeoutError: it has not answered after `seconds`.
        ConnectionEnded: it is of another release, or its engine has ended.
        msgspec.MsgspecError: it is no worker.
    """
    async with asyncio.timeout(seconds):
        stream, writer = await parse_address(member.address).connect(context, member.server_name)
        try:
            async for payload in received(stream):
                match decode_from_worker(payload):
                    case Ready() as ready:
                        return ready
                    case Failed(message=message):
                        raise ConnectionEnded(message)
            raise ConnectionEnded("it has closed the connection")
        finally:
            writer.transport.abort()
