"""A scripted server with OpenAI's API, on a loopback port: whatever a server may send, and when it ends."""

import asyncio
import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

CUT = object()
"""Part of a reply: the connection breaks here."""

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10, "prompt_tokens_details": {"cached_tokens": 2}}


@dataclass(frozen=True)
class Received:
    """A request as it arrived."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """`parts`: bytes to send, seconds to wait, an event to wait for, or `CUT`."""

    parts: Sequence[Any] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream; charset=utf-8"


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat_chunk(
    delta: dict[str, Any] | str = "", finish: str | None = None, *, index: int = 0, usage: Any = None, **members: Any
) -> bytes:
    """A chunk of a chat's stream."""
    content = {"content": delta} if isinstance(delta, str) else delta
    chunk = {"id": "up-1", "object": "chat.completion.chunk", "created": 1, "model": "there"}
    choice = {"index": index, "delta": content, "finish_reason": finish} | members
    return event(chunk | {"choices": [choice]} | ({} if usage is None else {"usage": usage}))


def usage_chunk(usage: dict[str, Any] = USAGE) -> bytes:
    return event({"id": "up-1", "object": "chat.completion.chunk", "choices": [], "usage": usage})


DONE = b"data: [DONE]\n\n"


def chat_reply(
    *texts: str, finish: str = "stop", usage: dict[str, Any] | None = USAGE, pause_s: float = 0.0, running: bool = False
) -> Reply:
    """A whole stream, a chunk for each text. `running`: with the usage in each chunk, a token a chunk."""
    parts: list[Any] = [chat_chunk({"role": "assistant", "content": ""})]
    for count, text in enumerate(texts, start=1):
        if pause_s:
            parts.append(pause_s)
        so_far = {"prompt_tokens": USAGE["prompt_tokens"], "completion_tokens": count} if running else None
        parts.append(chat_chunk(text, usage=so_far))
    parts.append(chat_chunk({}, finish))
    if usage is not None:
        parts.append(usage_chunk(usage))
    return Reply([*parts, DONE])


def error_reply(status: int, message: str = "broken at /srv/secret.py", **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message, "type": "x", "param": None, "code": status}}).encode()
    return Reply([body], status, headers, "application/json")


class FakeUpstream:
    """Answers each POST with the next of `replies`, else with `reply`. `models`: the answer to `GET /v1/models`."""

    def __init__(self) -> None:
        self.reply: Reply | Callable[[Received], Reply] = chat_reply("Hel", "lo", "!")
        self.replies: deque[Reply] = deque()
        self.models: Reply | None = None
        self.received: list[Received] = []
        self.hung_up = 0
        """Replies that the client did not read to their end."""
        self.live = 0
        """Replies being sent."""
        self.connections = 0
        self.port = 0
        self._loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [each.body for each in self.received]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while (head := await _read_head(reader)) is not None:
                method, path, headers = head
                content = await reader.readexactly(int(headers.get("content-length", 0)))
                if method == "GET":
                    reply = self.models or models_reply("there", "someone", 4096)
                else:
                    received = Received(path, headers, json.loads(content))
                    self.received.append(received)
                    reply = self.replies.popleft() if self.replies else self.reply
                    if callable(reply):
                        reply = reply(received)
                if not await self._send(reply, reader, writer, is_probe=method == "GET"):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _send(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_probe: bool
    ) -> bool:
        """Whether the connection may be used again."""
        head = f"HTTP/1.1 {reply.status} X\r\ncontent-type: {reply.content_type}\r\ntransfer-encoding: chunked\r\n"
        head += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in reply.headers.items())
        gone = asyncio.ensure_future(reader.read(1))
        self.live += not is_probe
        try:
            writer.write(head.encode() + b"\r\n")
            for part in reply.parts:
                if part is CUT:
                    await writer.drain()
                    writer.transport.abort()
                    return False
                if isinstance(part, float | int):
                    await asyncio.wait([gone], timeout=part)
                elif isinstance(part, threading.Event):
                    while not (part.is_set() or gone.done()):
                        await asyncio.wait([gone], timeout=0.01)
                else:
                    writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                    await writer.drain()
                if gone.done():
                    self.hung_up += 1
                    return False
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        except ConnectionError:
            self.hung_up += 1
            return False
        finally:
            self.live -= not is_probe
            if not gone.done():
                gone.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await gone

    @contextlib.contextmanager
    def serving(self, port: int = 0) -> Iterator["FakeUpstream"]:
        """On a thread of its own. `port`: 0: a free one."""
        started = threading.Event()
        stop: asyncio.Event

        async def run() -> None:
            nonlocal stop
            stop = asyncio.Event()
            self._loop = asyncio.get_running_loop()
            server = await asyncio.start_server(self._serve, "127.0.0.1", port)
            self.port = server.sockets[0].getsockname()[1]
            started.set()
            await stop.wait()
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        thread = threading.Thread(target=asyncio.run, args=(run(),))
        thread.start()
        assert started.wait(10)
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(stop.set)
            thread.join(10)


def models_reply(name: str, owner: str, window: int) -> Reply:
    card = {"id": name, "object": "model", "owned_by": owner, "max_model_len": window}
    return Reply([json.dumps({"object": "list", "data": [card]}).encode()], content_type="application/json")


async def _read_head(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str]] | None:
    try:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    method, path, _ = lines[0].split(" ")
    pairs = (line.split(": ", 1) for line in lines[1:] if line)
    return method, path, {name.lower(): value for name, value in pairs}
