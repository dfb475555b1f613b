"""A call of the gateway's own chat endpoint by a page that works without scripts: one request, one whole answer."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.types import ASGIApp, Message, Scope

from gateway.http.access import CHAT, require_scope
from gateway.http.errors import as_api_error
from gateway.http.request_state import begin_request
from gateway.tenancy.records import Principal

API_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The answer's JSON and headers."""

    body: Mapping[str, Any]
    headers: Mapping[str, str]


async def call_chat(chat: ASGIApp, principal: Principal, body: Mapping[str, Any], request_id: str) -> ChatAnswer:
    """Call the endpoint as `principal`, with its limits and at its cost. The call runs to its end although its client
    may be gone, as no part of the page is sent before.

    Raises:
        APIError: as the endpoint refuses or fails.
    """
    require_scope(principal, CHAT)
    content = orjson.dumps(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": API_PATH,
        "raw_path": API_PATH.encode(),
        "query_string": b"",
        "headers": headers,
        "client": None,
        "server": None,
    }
    begin_request(scope, request_id).authenticate(principal)
    pending: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
    received: list[Message] = []

    async def receive() -> Message:
        if pending:
            return pending.pop()
        await asyncio.Event().wait()  # the client stays
        raise AssertionError("unreachable")

    async def send(message: Message) -> None:
        received.append(message)

    try:
        await chat(scope, receive, send)
    except Exception as error:
        answer = as_api_error(error)
        if answer is None:
            raise
        raise answer from error
    start, *parts = received
    answered = orjson.loads(b"".join(part.get("body", b"") for part in parts))
    return ChatAnswer(answered, {name.decode(): value.decode() for name, value in start["headers"]})
