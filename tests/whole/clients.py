"""Clients, and the connections between them and a gateway, as uvicorn treats an ASGI application."""

import asyncio
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message

from gateway.http.bounds import MAX_STALLED_SECONDS
from gateway.http.errors import ClientGone
from tests.whole.scenario import Call
from tests.whole.tenants import key_of
from tests.whole.upstream_server import FAR
from tests.whole.world import Gateway, World

WRITE_BUFFER_BYTES = 16 * 1024
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "tokenize": "/v1/tokenize",
}


class Exchange:
    """One request on a connection. What is written after the client has gone is refused; a client that takes nothing
    for `MAX_STALLED_SECONDS` is cut off."""

    def __init__(self, body: bytes, pace: int | None, stalls_ms: int) -> None:
        self.status: int | None = None
        self.answered: int | None = None
        """The status that the program sent, also to a client that had gone."""
        self.error = bytearray()
        """The body that it sent with an error's status."""
        self.headers: dict[str, str] = {}
        self.taken = bytearray()
        """Bytes that the program handed to the socket: they count as sent."""
        self.writes: list[tuple[float, int]] = []
        """The loop's time of each write, and the bytes taken before it."""
        self.gone = asyncio.Event()
        self.gone_s: float | None = None
        """When the program could know of it, by the loop's time."""
        self.broken_off = False
        """It was the gateway's process that went."""
        self.complete = False
        self.at_deadline = False
        """It was still open when a shutdown's deadline came: what is left of it may be lost."""
        self._body = body
        self._pace = pace
        self._stalls_s = stalls_ms / 1000
        self._unwritten = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._asked = False
        self._reader: asyncio.Task[None] | None = None

    def hang_up(self) -> None:
        if not self.gone.is_set():
            self.gone_s = asyncio.get_running_loop().time()
        self.gone.set()
        self._drained.set()

    def break_off(self) -> None:
        """The process at the other end was killed."""
        self.broken_off = True
        self.hang_up()

    def cut_if_unread(self) -> None:
        """A client that does not take what it is sent at a shutdown's deadline is cut off."""
        if not self._drained.is_set():
            self.hang_up()

    async def receive(self) -> Message:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if not self._drained.is_set():
            await self._until_drained()
        if message["type"] == "http.response.start":
            self.answered = message["status"]
        elif self.answered is not None and self.answered >= 400:
            self.error += message.get("body", b"")
        if self.gone.is_set():
            if message["type"] == "http.response.body":
                raise ClientGone  # as the server's connection
            return
        if message["type"] == "http.response.start":
            assert self.status is None, "a response starts twice"
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            return
        assert self.status is not None, "a body without a start"
        assert not self.complete, "a body after its end"
        body = message.get("body", b"")
        self.writes.append((asyncio.get_running_loop().time(), len(self.taken)))
        self.taken += body
        self.complete = not message.get("more_body", False)
        self._unwritten += len(body)
        if self._reader is None and (self._pace or self._stalls_s) and not self.complete:
            self._reader = asyncio.create_task(self._read(), name="client reads")
        elif self._reader is None:
            self._unwritten = 0
        if self._unwritten > (WRITE_BUFFER_BYTES if not self._stalls_s else 256):
            self._drained.clear()

    async def aclose(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])

    async def _until_drained(self) -> None:
        """The connection's own timer cuts off a client that reads nothing, which ends every wait here, too."""
        stall = asyncio.get_running_loop().call_later(MAX_STALLED_SECONDS, self.hang_up)
        await self._drained.wait()
        stall.cancel()

    async def _read(self) -> None:
        """Take what was written, at the client's pace."""
        if self._stalls_s:
            await asyncio.sleep(self._stalls_s)
        while not self.complete or self._unwritten:
            await asyncio.sleep(0.05)
            self._unwritten -= min(self._unwritten, max(1, int((self._pace or 10**9) * 0.05)))
            if self._unwritten <= 64:
                self._drained.set()


@dataclass
class Report:
    """Outcome of a call, as its client and an observer of the socket know it."""

    call: Call
    gateway: Gateway
    began_s: float
    exchange: Exchange
    ended_s: float | None = None
    tries: int = 1
    steps: int = 0
    crash: BaseException | None = None
    waits: list[float] = field(default_factory=list)

    @property
    def status(self) -> int | None:
        return self.exchange.status

    @property
    def is_whole(self) -> bool:
        """The client has all of an answer."""
        return self.status == 200 and self.exchange.complete and not self.exchange.gone.is_set()

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(bytes(self.exchange.taken))
        return body

    @property
    def tells_token_ids(self) -> bool:
        """Whether the ids of an answer's tokens come with it."""
        return tells_token_ids(self.call)

    def taken_tokens(self, but_last_s: float = 0.0) -> int:
        """Of all choices, those that were handed to the socket, but for those of the last writes of tokens, of
        `but_last_s`. An end-of-text token shows no id."""
        choices = [choice for event in self.events(but_last_s) for choice in event.get("choices", ())]
        return sum(len(choice.get("token_ids") or ()) for choice in choices)

    def events(self, but_last_s: float = 0.0) -> list[dict[str, Any]]:
        """Of a stream, in order, without the last `[DONE]`."""
        late: list[int] = []
        if but_last_s and (writes := self._token_writes()):
            late = [taken for at_s, taken in writes if at_s >= writes[-1][0] - but_last_s]
        text = bytes(self.exchange.taken[: late[0]] if late else self.exchange.taken).decode()
        text = text[: text.rfind("\n\n") + 2]  # a write may be cut
        lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def _token_writes(self) -> list[tuple[float, int]]:
        """Those of `writes` that have tokens: an error that ends a stream may come long after the last of them."""
        writes = self.exchange.writes
        ends = [taken for _, taken in writes[1:]] + [len(self.exchange.taken)]
        return [
            (at_s, taken)
            for (at_s, taken), end in zip(writes, ends, strict=True)
            if b'"token_ids":[' in self.exchange.taken[taken:end]
        ]


def tells_token_ids(call: Call) -> bool:
    """Whether a call asks for the ids of its tokens. An upstream's are not known."""
    return call.endpoint in ("chat", "completions") and call.stream and call.variant % 2 == 0 and call.model != FAR


class Stepped:
    """Awaits a coroutine and counts how often it is resumed: `at(n)` is called before the n-th time."""

    def __init__(self, coroutine: Any, at: Any) -> None:
        self._coroutine = coroutine
        self._at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, value, error = 0, None, None
        while True:
            steps += 1
            self._at(steps)
            try:
                waited = self._coroutine.send(value) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                return end.value
            value, error = None, None
            try:
                value = yield waited
            except BaseException as raised:
                error = raised


async def perform(world: World, call: Call, reports: list[Report]) -> None:
    """Make a call, and again where it is refused and the client has it so."""
    retries = call.retries
    while True:
        report = await _try(world, call)
        if report is None:
            return
        reports.append(report)
        wait_s = _retry_after_s(report)
        if not retries or wait_s is None or wait_s > 65:
            return
        retries -= 1
        await asyncio.sleep(wait_s)


async def _try(world: World, call: Call) -> Report | None:
    gateway = world.gateways[call.gateway % len(world.gateways)]
    if not gateway.open:
        return None
    method, path, body = _request(call)
    exchange = Exchange(body, call.pace, call.stalls_ms)
    report = Report(call, gateway, world.clock.elapsed_s, exchange)
    scope = _scope(method, path, call)

    def at(step: int) -> None:
        report.steps = step
        if step == call.gone_after_steps:
            exchange.hang_up()
        if step == call.cancelled_after_steps:
            task.cancel()

    async def serve() -> None:
        try:
            await Stepped(gateway.app(scope, exchange.receive, exchange.send), at)
        except (Exception, asyncio.CancelledError) as error:
            report.crash = error

    task: asyncio.Task[None] = asyncio.create_task(serve(), name=f"serve {call.endpoint}")
    gateway.tasks.add(task)
    gateway.exchanges.add(exchange)
    timer = None
    if call.gone_after_ms is not None:
        timer = asyncio.get_running_loop().call_later(call.gone_after_ms / 1000, exchange.hang_up)
    try:
        await asyncio.wait([task])
    finally:
        gateway.tasks.discard(task)
        gateway.exchanges.discard(exchange)
        if timer is not None:
            timer.cancel()
        report.ended_s = world.clock.elapsed_s
        world.refusals.note(call, scope, exchange)
        await exchange.aclose()
    return report


def _retry_after_s(report: Report) -> float | None:
    stated = report.exchange.headers.get("retry-after-ms"), report.exchange.headers.get("retry-after")
    if report.status not in (429, 503):
        return None
    if stated[0] is not None:
        return float(stated[0]) / 1000
    return None if stated[1] is None else float(stated[1])


def _scope(method: str, path: str, call: Call) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"simulated"),
            (b"authorization", f"Bearer {key_of(call.tenant)}".encode()),
            (b"content-type", b"application/json"),
        ],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }


def _request(call: Call) -> tuple[str, str, bytes]:
    text = " ".join([f"{call.tenant}-secret", *(["word"] * call.words), str(call.variant)])
    body: dict[str, Any] = {"model": call.adapter or call.model}
    match call.endpoint:
        case "chat":
            body |= {"messages": [{"role": "user", "content": text}], "max_tokens": call.max_tokens, "n": call.n}
            if call.stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
                if tells_token_ids(call):
                    body["return_token_ids"] = True
            if call.grammar:
                body["response_format"] = {"type": "json_object"}
            if call.stop is not None:
                body["stop"] = call.stop
            if call.session is not None and call.n == 1:
                body["session_id"] = call.session
        case "completions":
            prompts = [text] if call.variant % 3 else [text, text + " too"]
            body |= {"prompt": prompts, "max_tokens": call.max_tokens, "n": call.n}
            if call.stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
                if tells_token_ids(call):
                    body["return_token_ids"] = True
            elif call.variant % 5 == 0:
                body["best_of"] = call.n + 1
        case "responses":
            body |= {"input": text, "max_output_tokens": max(16, call.max_tokens), "stream": call.stream}
        case "messages":
            body |= {"messages": [{"role": "user", "content": text}], "max_tokens": call.max_tokens}
            body["stream"] = call.stream
        case "embeddings":
            body |= {"model": call.adapter or "large", "input": [text] * (1 + call.variant % 4)}
        case "tokenize":
            model = "large" if call.model == "auto" else call.model
            body |= {"model": call.adapter or model, "prompt": text}
        case "read":
            paths = ("/v1/limits", "/v1/models", "/readyz", "/metrics", "/v1/sessions/s1", "/healthz")
            return "GET", paths[call.variant % len(paths)], b""
        case "hostile":
            return "POST", PATHS["chat"], _HOSTILE[call.variant % len(_HOSTILE)]
    return "POST", PATHS[call.endpoint], json.dumps(body).encode()


_MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'
_HOSTILE = (
    b"",
    b"{",
    b"[" * 3000,
    b'{"model":"large"}',
    b'{"model":"nowhere",' + _MESSAGES + b"}",
    b'{"model":"large","messages":[{"role":"user","content":"' + b"x" * 5000 + b'"}]}',
    b'{"model":"large","max_tokens":-1,' + _MESSAGES + b"}",
    b'{"model":"large","n":129,' + _MESSAGES + b"}",
    b'{"model":"large","temperature":NaN,' + _MESSAGES + b"}",
    b'{"model":"large","messages":[{"role":"user","content":"\\ud800"}],"max_tokens":2}',
    b'{"model":"large","session_id":"' + b"s" * 3000 + b'",' + _MESSAGES + b"}",
    b'{"model":"large","logit_bias":{"99999":1},' + _MESSAGES + b"}",
    b'{"model":"large","stop":["","",""],' + _MESSAGES + b"}",
    b'{"model":"large","max_tokens":1,"max_tokens":2,' + _MESSAGES + b"}",
)
