"""Serving a route: who may, what was asked, the answer. Reads run as they come, writes as changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.admin.change import Changes
from gateway.admin.errors import as_admin_error, not_found
from gateway.admin.idempotency import HEADER, keep, kept_answer, repetition_of
from gateway.admin.roles import Administrator
from gateway.admin.routes import PATH_KINDS, Call, Document, Route
from gateway.admin.schema import Member, Record, without_secrets
from gateway.api.errors import APIError, invalid
from gateway.api.exchange import exchange_of
from gateway.api.json_body import read_json
from gateway.api.responses import send_body
from gateway.errors import OperatorError

MAX_QUERY_CHARS = 8 * 1024
MAX_JSON_DEPTH = 16
REPLAYED = {"idempotent-replayed": "true"}

_ADMINISTRATOR = "turnpike.administrator"
_NOTHING: Record[dict[str, Any]] = Record("Nothing", dict)
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
                "This URL does not answer that method.",
                code="method_not_allowed",
                headers={"allow": ", ".join(self._routes)},
            )
        administrator = administrator_of(scope)
        if administrator.role not in route.allowed:
            raise APIError(
                403,
                f"A key of role {administrator.role} may not do this: {', '.join(sorted(route.allowed))} may.",
                code="role_not_allowed",
            )
        try:
            answer = await self._answer(route, administrator, scope, receive)
        except OperatorError as error:
            raise as_admin_error(error) or error from error
        await send_body(send, answer.status, answer.body, answer.headers, answer.media_type)

    async def _answer(self, route: Route, administrator: Administrator, scope: Scope, receive: Receive) -> _Answer:
        path = _read_path(scope["path_params"])
        query = read_query(route.query, scope["query_string"])
        if route.read is not None:
            value = await route.read(Call(administrator, path, query, None))
            return _answer_of(route, value)
        members = await _read_members(route, scope, receive)
        call = Call(administrator, path, query, (route.body or _NOTHING).read(members, ""))
        return await self._change(route, call, scope, members)

    async def _change(self, route: Route, call: Call, scope: Scope, members: Mapping[str, Any]) -> _Answer:
        assert route.write is not None
        actor = call.administrator.key_id
        header = Headers(scope=scope).get(HEADER)
        query = scope["query_string"].decode("latin-1")
        repetition = repetition_of(actor, header, route.method, scope["path"], query, members)
        if route.prepare is not None:
            call = replace(call, prepared=await route.prepare(call))
        async with self._changes.change(actor, exchange_of(scope).request_id) as change:
            kept = None if repetition is None else await kept_answer(change, repetition)
            if kept is not None:
                return _Answer(kept.status, kept.body, REPLAYED)
            value = await route.write(change, call)
            if repetition is not None:
                await keep(change, repetition, route.status, without_secrets(route.json_answer, value))
        return _answer_of(route, value)


def _answer_of(route: Route, value: Any) -> _Answer:
    if isinstance(value, Document):
        return _Answer(route.status, value.content, {}, value.media_type)
    return _Answer(route.status, orjson.dumps(value), {})


def _read_path(given: Mapping[str, str]) -> Mapping[str, str]:
    """
    Raises:
        APIError: 404, what stands in the path cannot name anything.
    """
    try:
        return {name: PATH_KINDS[name].read(value, name) for name, value in given.items()}
    except APIError:
        raise not_found() from None


def read_query(members: Mapping[str, Member], query_string: bytes) -> Mapping[str, Any]:
    """The parameters of a query, None for those that are absent.

    Raises:
        APIError: 400 naming the parameter: unknown, twice, missing or of another kind.
    """
    try:
        pairs = parse_qsl(query_string[: MAX_QUERY_CHARS + 1].decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:
        raise invalid(None, "The query must be UTF-8, percent-encoded.") from None
    if len(query_string) > MAX_QUERY_CHARS:
        raise invalid(None, f"The query must not be over {MAX_QUERY_CHARS} characters.")
    values: dict[str, object] = {}
    for name, text in pairs:
        if name in values:
            raise invalid(name[:64], f"{name[:64]} is given twice.")
        values[name] = members[name].kind.from_text(text) if name in members else text
    return Record("Query", dict, members).read(values, "")


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
