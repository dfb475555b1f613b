"""A server that runs the model `FAR`, and the ways of gateways to it: chunks arrive late, in pieces, or never."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

import httpx2

from engine.text.processor import TextProcessor
from gateway.generation.remote_prompt import BYTES_PER_TOKEN, RemoteText
from gateway.upstreams import opening, text
from tests.whole import models
from tests.whole.scenario import Config

FAR = "far"
URL = "http://far.simulated/v1"
REFUSALS = (429, 503, 500, 401, 404)
SILENCE_S = 1_000.0
"""Beyond every timeout."""


@dataclass(slots=True)
class Served:
    """A request at the server. `texts`: of its choices; `tokens`: of each in all, `sent`: that have left the server.
    `is_reported`: its usage was sent."""

    request_id: str
    prompt_tokens: int
    texts: list[str]
    tokens: list[int]
    sent: list[int]
    is_reported: bool = False

    def usage(self, completion_tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": completion_tokens}


@dataclass(slots=True)
class UpstreamServer:
    """One for all gateways of a run. While it is `away` there are no connections; `refuses` with a status, and after
    `retry_after_s`; `breaks` that many responses in their middle; falls `silent`; is slower by `factor`."""

    config: Config
    random: Random
    away: bool = False
    refuses: int = 0
    retry_after_s: float | None = None
    breaks: int = 0
    silent: bool = False
    factor: float = 1.0
    is_faulted: bool = False
    """It was disturbed, so that requests to it may fail."""
    open: int = 0
    """Responses that neither side has ended."""
    served: dict[str, list[Served]] = field(default_factory=dict)
    """By the id of the request at the gateway: its calls, as a request may be sent again."""
    links: list["Link"] = field(default_factory=list)

    @property
    def delay_s(self) -> float:
        return self.config.upstream_us * self.factor * (0.5 + self.random.random()) / 1e6

    def disarm(self) -> None:
        """Serve all that comes."""
        self.away, self.refuses, self.breaks, self.silent, self.factor = False, 0, 0, False, 1.0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """In the place of connections to other machines."""
        counting = models.text() if self.config.upstream_exact else None
        with (
            patch.object(httpx2, "AsyncClient", self._client),
            patch.object(opening, "upstream_text", partial(_text, counting)),
        ):
            yield

    def _client(self, **options: Any) -> httpx2.AsyncClient:
        link = Link(self)
        self.links.append(link)
        return _Client(transport=link, **options)

    def answer(self, path: str, body: Mapping[str, Any], request_id: str) -> Served:
        """Compute a request."""
        chat, prompt = path.endswith("/chat/completions"), body.get("prompt") or body.get("messages")
        key = json.dumps([prompt, body.get("seed")])
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        drawn = [_drawn(f"{key}{choice}", limit) for choice in range(body.get("n", 1))]
        cut = [_cut(each, body.get("stop", [])) for each in drawn]
        served = Served(
            request_id,
            self._prompt_tokens(prompt, chat=chat),
            [shown for shown, _ in cut],
            [tokens for _, tokens in cut],
            [0 for _ in cut],
        )
        self.served.setdefault(request_id.rpartition("-")[0], []).append(served)
        return served

    def _prompt_tokens(self, prompt: Any, *, chat: bool) -> int:
        if self.config.upstream_exact:
            encode = models.text().encode_chat if chat else models.text().encode
            return len(encode(prompt)) if not isinstance(prompt, list) or chat else len(prompt)
        size = sum(len(each["content"]) for each in prompt) if chat else len(prompt)
        return 1 + size // (2 * BYTES_PER_TOKEN)  # within what a gateway estimates without the tokenizer


_Client = httpx2.AsyncClient


class Link(httpx2.AsyncBaseTransport):
    """A gateway's way to the server. `cut`: its process was killed."""

    def __init__(self, server: UpstreamServer) -> None:
        self._server = server
        self.cut = False

    @property
    def is_lost(self) -> bool:
        return self.cut or self._server.away

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        server = self._server
        await asyncio.sleep(server.delay_s)
        if self.is_lost:
            raise httpx2.ConnectError("the simulated server is away")
        if server.silent:
            await asyncio.sleep(SILENCE_S)
        if server.refuses:
            headers = {} if server.retry_after_s is None else {"retry-after": str(server.retry_after_s)}
            return httpx2.Response(
                server.refuses, headers=headers, stream=httpx2.ByteStream(b'{"error": {"message": "no"}}')
            )
        if request.method == "GET":
            owner = "vllm" if server.config.upstream == "running" else "others"
            card = {"id": FAR, "owned_by": owner, "max_model_len": server.config.window}
            return httpx2.Response(200, content=json.dumps({"data": [card]}).encode())
        body = json.loads(await request.aread())
        served = server.answer(request.url.path, body, request.headers["x-request-id"])
        stream = _Stream(self, server, served, body, chat=request.url.path.endswith("/chat/completions"))
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


class _Stream(httpx2.AsyncByteStream):
    """The response to one call."""

    def __init__(self, link: Link, server: UpstreamServer, served: Served, body: Any, *, chat: bool) -> None:
        self._link, self._server, self._served = link, server, served
        self._chat = chat
        self._running = bool(body["stream_options"].get("continuous_usage_stats"))
        server.open += 1
        self._is_open = True

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            self._server.open -= 1

    async def __aiter__(self) -> AsyncIterator[bytes]:
        server = self._server
        breaks = server.breaks > 0
        server.breaks -= breaks
        left = 1 + server.random.randrange(8) if breaks else None
        quietly = server.random.random() < 0.5  # as at the end of a response
        events = self._events()
        while True:
            await asyncio.sleep(SILENCE_S if server.silent else server.delay_s)
            if left == 0 and quietly:
                return
            if self._link.is_lost or left == 0:
                raise httpx2.ReadError("the simulated connection is lost")
            left = None if left is None else left - 1
            if (event := next(events, None)) is None:
                return
            middle = server.random.randrange(len(event)) if server.random.random() < 0.2 else 0
            if middle:
                yield event[:middle]
                await asyncio.sleep(server.delay_s)
            yield event[middle:]

    def _events(self) -> Iterator[bytes]:
        """A chunk has some tokens of a choice, which count as sent when it is taken from here."""
        served, each = self._served, self._server.config.upstream_tokens
        positions = [0] * len(served.texts)
        for number in count():
            choice = number % len(served.texts)
            begin = positions[choice]
            if begin >= served.tokens[choice]:
                if all(at >= most for at, most in zip(positions, served.tokens, strict=True)):
                    break
                continue
            end = positions[choice] = min(begin + each, served.tokens[choice])
            served.sent[choice] = end
            shown = served.texts[choice][begin:end]
            part: dict[str, Any] = {"delta": {"content": shown}} if self._chat else {"text": shown}
            last = end == served.tokens[choice]
            reason = ("length" if len(served.texts[choice]) == end else "stop") if last else None
            usage = {"usage": served.usage(end)} if self._running else {}  # of this choice, as vLLM has it
            yield _event({"choices": [{"index": choice, "finish_reason": reason, **part}], **usage})
        if self._server.config.upstream != "none":
            served.is_reported = True
            yield _event({"choices": [], "usage": served.usage(sum(served.tokens))})
        yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _drawn(key: str, limit: int) -> str:
    """An answer of one letter a token, of at most `limit`."""
    digest = hashlib.sha256(key.encode()).digest()
    length = limit if digest[0] % 2 else min(limit, 1 + digest[1] % 40)
    return "".join(chr(97 + digest[2 + at % 30] % 26) for at in range(length))


def _cut(drawn: str, stops: Any) -> tuple[str, int]:
    """The text before a stop string, and the tokens up to its end."""
    found = [(at, len(stop)) for stop in stops if (at := drawn.find(stop)) >= 0]
    if not found:
        return drawn, len(drawn)
    at, length = min(found)
    return drawn[:at], at + length


def _text(counting: TextProcessor | None, name: str, path: object) -> Any:
    """As `upstream_text`."""
    if counting is None:
        return text.upstream_text(name, None)
    tokenizer = text.LabelTokenizer.over(counting.tokenizer)
    return RemoteText(tokenizer, counting.chat_template, counting)
