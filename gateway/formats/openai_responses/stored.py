"""GET and DELETE /v1/responses/{id}, and GET /v1/responses/{id}/input_items: a tenant's stored responses. Another
tenant's response is not found."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson
from starlette.types import Receive, Scope, Send

from gateway.formats.openai_responses.ids import is_response_id
from gateway.formats.openai_responses.record import Record, read_record
from gateway.http.errors import APIError, invalid
from gateway.http.fields import unsupported
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.sessions.records import Records

MAX_PAGE = 100
DEFAULT_PAGE = 20
_MAX_QUERY_BYTES = 1024


class OneResponse:
    """An ASGI endpoint."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: APIError, 400, 404 or, for one that cannot be read, 500; SessionStoreAway."""
        _query(scope, {"stream": _is_off, "include_obfuscation": _is_off})
        id, tenant_id = scope["path_params"]["id"], request_state(scope).caller().tenant_id
        if scope["method"] == "DELETE":
            if not (is_response_id(id) and await self._records.delete(tenant_id, id)):
                raise _not_found(id)
            answer: dict[str, Any] = {"id": id, "object": "response", "deleted": True}
        else:
            answer = (await _read(self._records, scope)).response
        await send_body(send, 200, orjson.dumps(answer))


class InputItems:
    """An ASGI endpoint."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: APIError, 400, 404 or, for one that cannot be read, 500; SessionStoreAway."""
        query = _query(scope, {"after": str, "limit": _page_size, "order": _order})
        items = (await _read(self._records, scope)).input
        if query.get("order", "desc") == "desc":
            items = items[::-1]
        ids = [item["id"] for item in items]
        first = 0
        if "after" in query:
            if query["after"] not in ids:
                raise invalid("after", "Item with id in 'after' not found in this list.")
            first = ids.index(query["after"]) + 1
        last = first + query.get("limit", DEFAULT_PAGE)
        page = items[first:last]
        answer = {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": last < len(items),
        }
        await send_body(send, 200, orjson.dumps(answer))


async def _read(records: Records, scope: Scope) -> Record:
    id = scope["path_params"]["id"]
    record = await read_record(records, request_state(scope).caller().tenant_id, id)
    if record is None:
        raise _not_found(id)
    return record


def _query(scope: Scope, readers: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The parameters of the query string.

    Raises:
        APIError: 400 naming the parameter that is unknown or has an invalid value.
    """
    query = scope["query_string"]
    if len(query) > _MAX_QUERY_BYTES:
        raise invalid(None, f"The query string is too long. The maximum is {_MAX_QUERY_BYTES} bytes.")
    values = {}
    for name, text in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in readers:
            raise unsupported(name[:64])
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise invalid(name, f"Invalid '{name}': {error}") from None
    return values


def _is_off(text: str) -> None:
    if text.lower() != "false":
        raise ValueError("streaming a stored response is not supported by this server.")


def _page_size(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 3 and 1 <= int(text) <= MAX_PAGE):
        raise ValueError(f"expected an integer between 1 and {MAX_PAGE}.")
    return int(text)


def _order(text: str) -> str:
    if text not in ("asc", "desc"):
        raise ValueError("supported values are: 'asc' and 'desc'.")
    return text


def _not_found(id: str) -> APIError:
    return APIError(404, f"Response with id '{id[:64]}' not found.", code="response_not_found")
