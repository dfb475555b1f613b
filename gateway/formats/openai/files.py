"""GET /v1/files, GET and DELETE /v1/files/{id}, and GET /v1/files/{id}/content: a tenant's files. Another tenant's file
is not found."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson
from starlette.types import Receive, Scope, Send

from gateway.files.records import Purpose
from gateway.files.store import FileStore
from gateway.formats.openai.file_format import answering_files, file_object, list_object
from gateway.http.errors import APIError
from gateway.http.query import page_order, page_size, read_query
from gateway.http.request_state import request_state
from gateway.http.responses import encoded_headers, send_body

MAX_PAGE = 10_000
_READ_BYTES = 256 * 1024

InUse = Callable[[str, str], Awaitable[bool]]
"""Whether a file is the input of a batch that has not ended: `(tenant_id, file_id)`."""


def _purpose(text: str) -> str:
    if text not in tuple(Purpose):
        raise ValueError(f"expected one of {', '.join(Purpose)}.")
    return text


class Files:
    """An ASGI endpoint: uploads by `upload`, and lists."""

    def __init__(self, store: FileStore, upload: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._store = store
        self._upload = upload

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self._upload(scope, receive, send)
            return
        readers: Mapping[str, Callable[[str], Any]] = {
            "after": str,
            "limit": page_size(MAX_PAGE),
            "order": page_order,
            "purpose": _purpose,
        }
        query = read_query(scope, readers)
        with answering_files("after", 400):
            files, has_more = await self._store.page(
                request_state(scope).caller().tenant_id,
                datetime.now(UTC),
                limit=query.get("limit", MAX_PAGE),
                after=query.get("after"),
                purpose=query.get("purpose"),
                descending=query.get("order", "desc") == "desc",
            )
        await send_body(send, 200, orjson.dumps(list_object([file_object(each) for each in files], has_more)))


class OneFile:
    """An ASGI endpoint."""

    def __init__(self, store: FileStore, in_use: InUse) -> None:
        self._store = store
        self._in_use = in_use

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read_query(scope, {})
        file_id, tenant_id = scope["path_params"]["id"], request_state(scope).caller().tenant_id
        with answering_files():
            if scope["method"] == "DELETE":
                if await self._in_use(tenant_id, file_id):
                    message = "This file is the input of a batch that has not ended. Cancel the batch first."
                    raise APIError(400, message, param="id", code="file_in_use")
                await self._store.delete(tenant_id, file_id)
                answer = {"id": file_id, "object": "file", "deleted": True}
            else:
                answer = file_object(await self._store.find(tenant_id, file_id, datetime.now(UTC)))
        await send_body(send, 200, orjson.dumps(answer))


class FileContent:
    """An ASGI endpoint: the bytes of a file, as an attachment."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read_query(scope, {})
        file_id, tenant_id = scope["path_params"]["id"], request_state(scope).caller().tenant_id
        with answering_files():
            file = await self._store.find(tenant_id, file_id, datetime.now(UTC))
            content = await asyncio.to_thread(self._store.contents.open, tenant_id, file_id)
        try:
            headers = {
                "content-type": "application/octet-stream",
                "content-length": str(file.bytes),
                "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
                "x-content-type-options": "nosniff",
            }
            await send({"type": "http.response.start", "status": 200, "headers": encoded_headers(headers)})
            while piece := await asyncio.to_thread(content.read, _READ_BYTES):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            content.close()
