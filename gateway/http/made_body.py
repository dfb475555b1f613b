"""Endpoints whose body is the same for everyone: made at the first request, and then kept."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette.types import Receive, Scope, Send

from gateway.http.responses import send_body

JSON = "application/json"
PUBLIC: Mapping[str, str] = {"cache-control": "public, max-age=300", "x-content-type-options": "nosniff"}


class MadeBody:
    """An ASGI endpoint for a body that `make` returns, called once."""

    def __init__(self, make: Callable[[], bytes], headers: Mapping[str, str], content_type: str = JSON) -> None:
        self._make = make
        self._headers = headers
        self._content_type = content_type
        self._body: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._body is None:
            self._body = self._make()
        await send_body(send, 200, self._body, self._headers, self._content_type)


def document_endpoint(document: Callable[[], dict[str, Any]]) -> MadeBody:
    """An OpenAPI document, which editors of any origin may load."""
    headers = {**PUBLIC, "access-control-allow-origin": "*"}
    return MadeBody(lambda: orjson.dumps(document()), headers)
