"""A server with scripted answers, byte for byte like those of other servers."""

import asyncio
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.support.servers import free_port


def sse(*events: Any, end: str = "\n\n") -> bytes:
    return "".join(f"data: {each if isinstance(each, str) else json.dumps(each)}{end}" for each in events).encode()


def delta(**fields: Any) -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def finish(reason: str = "stop") -> dict[str, Any]:
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


def usage(prompt_tokens: int, completion_tokens: int, **more: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": 0}
    return {"object": "chat.completion.chunk", "choices": [], "usage": counts} | more


@dataclass
class Script:
    """Answer to each request: `pieces`, one write each; then, where `cut`, no end of the body. The server closes a
    connection during the answer that follows the first `answers_a_connection`."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    content_type: str = "text/event-stream"
    cut: bool = False
    delay_s: float = 0
    end_delay_s: float = 0
    answers_a_connection: float = math.inf
    refuse: Callable[[dict[str, Any]], bool] = lambda _: False
    """Answer 400 to such a body."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    peers: Counter[object] = field(default_factory=Counter)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        peer = request.transport.get_extra_info("peername")
        self.peers[peer] += 1
        if self.peers[peer] > self.answers_a_connection:
            request.transport.abort()
            return web.Response()
        self.keys.append(request.headers.get("authorization"))
        if self.refuse(body):
            return web.json_response({"error": {"message": "unknown field", "code": None}}, status=400)
        await asyncio.sleep(self.delay_s)
        response = web.StreamResponse(status=self.status, headers={"content-type": self.content_type})
        await response.prepare(request)
        for piece in self.pieces:
            await response.write(piece)
        await asyncio.sleep(self.end_delay_s)
        if self.cut:
            request.transport.abort()
        else:
            await response.write_eof()
        return response


@contextmanager
def serving(script: Script) -> Iterator[str]:
    """The base URL of a server on a thread of its own."""
    port, loop, ready = free_port(), asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", script.answer)
        app.router.add_post("/v1/completions", script.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    def run() -> None:
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
