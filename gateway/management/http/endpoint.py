"""Serving a route: who may, what was asked, the answer. Reads run as they come, writes as changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.http import json_body
from gateway.http.errors import APIError, invalid
from gateway.http.json_body import read_json
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.management.operations.change import Changes
from gateway.management.operations.idempotency import HEADER, KeptAnswer, repetition_of
from gateway.management.operations.operations import (
    make_change,
    read_body,
    read_path,
    read_texts,
    require_role,
    require_size,
    typed_errors,
)
from gateway.management.operations.roles import Administrator
from gateway.management.operations.routes import Document, OperationInput, Route
from gateway.management.operations.schema import Member

MAX_JSON_DEPTH = 16
REPLAYED = {"idempotent-replayed": "true"}

_ADMINISTRATOR = "turnpike.administrator"
_JSON = "application/json"


def set_administrator(scope: Scope, administrator: Administrator) -> None:
    scope[_ADMINISTRATOR] = administrator


def administrator_of(scope: Scope) -> Administrator:
    administrator = scope[_ADMINISTRATOR]
    assert isinstance(administrator, Administrator)
    return administrator


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    headers: Mapping[str, str]
    media_type: str = _JSON


class Resource:
    """An ASGI endpoint: all routes of one path, by method."""

    def __init__(self, routes: Sequence[Route], changes: Changes) -> None:
        for route in routes:
            route.check()
        self._routes = {route.method: route for route in routes}
        self._changes = changes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope["method"])
        if route is None:
            raise APIError(
                405,
                "Method not allowed.",
                code="method_not_allowed",
                headers={"allow": ", ".join(self._routes)},
            )
        administrator = administrator_of(scope)
        require_role(route, administrator)
        with typed_errors():
            answer = await self._answer(route, administrator, scope, receive)
        await send_body(send, answer.status, answer.body, answer.headers, answer.media_type)

    async def _answer(self, route: Route, administrator: Administrator, scope: Scope, receive: Receive) -> _Answer:
        path = read_path(scope["path_params"])
        query = read_query(route.query, scope["query_string"])
        if route.read is not None:
            return _answer_of(route, await route.read(OperationInput(administrator, path, query, None)))
        if route.store is not None:
            call = OperationInput(administrator, path, query, await _read_octets(route, scope, receive))
            return _answer_of(route, await route.store(call))
        members = await _read_members(route, scope, receive)
        call = OperationInput(administrator, path, query, read_body(route, members))
        header = Headers(scope=scope).get(HEADER)
        told = (route.method, scope["path"], scope["query_string"].decode("latin-1"), members)
        repetition = repetition_of(administrator.key_id, header, *told)
        value = await make_change(self._changes, route, call, request_state(scope).request_id, repetition)
        if isinstance(value, KeptAnswer):
            return _Answer(value.status, value.body, REPLAYED)
        return _answer_of(route, value)


def _answer_of(route: Route, value: Any) -> _Answer:
    if isinstance(value, Document):
        return _Answer(route.status, value.content, {}, value.media_type)
    return _Answer(route.status, orjson.dumps(value), {})


def read_query(members: Mapping[str, Member], query_string: bytes) -> Mapping[str, Any]:
    """The parameters of a query, None for those that are absent. How long a URL may be is the connection's affair.

    Raises:
        APIError: 400 naming the parameter: unknown, twice, missing or of another kind.
    """
    try:
        pairs = parse_qsl(query_string.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise invalid(None, "The query must be UTF-8, percent-encoded.") from None
    texts: dict[str, str] = {}
    for name, text in pairs:
        if name in texts:
            raise invalid(name[:64], f"Duplicate parameter: '{name[:64]}'.")
        texts[name] = text
    return read_texts(members, texts)


async def _read_octets(route: Route, scope: Scope, receive: Receive) -> bytes:
    """The bytes of a file.

    Raises:
        APIError: 408, 413 or 415.
    """
    assert route.octets is not None
    media_type = Headers(scope=scope).get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
    if media_type != "application/octet-stream":
        raise APIError(415, "The content type must be application/octet-stream.", code="unsupported_media_type")
    content = await json_body.read_body(receive)
    require_size(route.octets, content)
    return content


async def _read_members(route: Route, scope: Scope, receive: Receive) -> Mapping[str, Any]:
    """The body's. A route that takes none can do without a body.

    Raises:
        APIError: 400, 408, 413 or 415, it is missing or not one JSON object.
    """
    headers = Headers(scope=scope)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        return (await read_json(scope, receive, MAX_JSON_DEPTH)).rest()
    if route.body is not None:
        raise invalid(None, "The body must be a JSON object, `{}` at least.", "missing_body")
    return {}
