"""Sends a whole response as two ASGI messages, without a response object."""

from collections.abc import Mapping

from starlette.types import Send


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> None:
    """Send a whole response."""
    fields = [
        (b"content-type", content_type.encode("latin-1")),
        (b"content-length", str(len(body)).encode("latin-1")),
    ]
    fields += encoded_headers(headers or {})
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})


def encoded_headers(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """Headers in ASGI's form."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
