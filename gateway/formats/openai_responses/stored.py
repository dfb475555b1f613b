"""GET and DELETE /v1/responses/{id}, and GET /v1/responses/{id}/input_items: a tenant's stored responses. Another
tenant's response is not found."""

from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway.formats.openai_responses.ids import is_response_id
from gateway.formats.openai_responses.record import Record, read_record
from gateway.http.errors import APIError, invalid
from gateway.http.query import page_order, page_size, read_query
from gateway.http.request_state import request_state
from gateway.http.responses import send_body
from gateway.sessions.records import Records

MAX_PAGE = 100
DEFAULT_PAGE = 20


class OneResponse:
    """An ASGI endpoint."""

    def __init__(self, records: Records) -> None:
        self._records = records

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: APIError, 400, 404 or, for one that cannot be read, 500; SessionStoreAway."""
        read_query(scope, {"stream": _is_off, "include_obfuscation": _is_off})
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
        query = read_query(scope, {"after": str, "limit": page_size(MAX_PAGE), "order": page_order})
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


def _is_off(text: str) -> None:
    if text.lower() != "false":
        raise ValueError("streaming a stored response is not supported by this server.")


def _not_found(id: str) -> APIError:
    return APIError(404, f"Response with id '{id[:64]}' not found.", code="response_not_found")
