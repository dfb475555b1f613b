"""The server's way down, in this process."""

import asyncio
from contextlib import closing

from gateway.http.drain import Drain
from gateway.process.listener import bind
from gateway.process.server import Server


class App:
    """Knows its lifespan alone."""

    def __init__(self) -> None:
        self.ended = False

    async def __call__(self, scope, receive, send) -> None:
        assert (await receive())["type"] == "lifespan.startup"
        await send({"type": "lifespan.startup.complete"})
        assert (await receive())["type"] == "lifespan.shutdown"
        self.ended = True
        await send({"type": "lifespan.shutdown.complete"})


async def test_a_signal_as_soon_as_it_listens_ends_it_in_good_order() -> None:
    app, drain = App(), Drain()
    server = Server(app, drain, delay_s=0, deadline_s=60, on_ready=lambda: server.begin_drain())
    with closing(bind("127.0.0.1", 0)) as listener:
        async with asyncio.timeout(30):
            await server.serve(sockets=[listener])
    assert app.ended
    assert drain.begun
