"""POST /v1/files: reads the multipart body to the disk as it arrives."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import orjson
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from gateway.files.contents import NewContent
from gateway.files.records import MAX_FILENAME_CHARS, UPLOADED, Purpose, StoredFile, new_file_id
from gateway.files.store import FileStore
from gateway.formats.openai.file_format import answering_files, file_object
from gateway.http.bounds import MAX_BODY_SECONDS
from gateway.http.errors import APIError, ClientGone, invalid
from gateway.http.fields import missing, only_value, unsupported, unsupported_value
from gateway.http.multipart import MultipartParser, Part
from gateway.http.request_state import request_state
from gateway.http.responses import send_body

FORM_BYTES = 64 * 1024
"""Bytes of a form in addition to its file."""
EXPIRY_RANGE_S = (3600, 2_592_000)
"""OpenAI's range of `expires_after`."""
BATCH_FILE_LIFE = timedelta(days=30)
"""Of files of batches, unless the client states another."""
_WRITE_BYTES = 1024**2
_MAX_FIELD_BYTES = 1024
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = ("purpose", _ANCHOR, _SECONDS)


class UploadFile:
    """An ASGI endpoint. `max_bytes`: of a file; `max_batch_bytes`: of one with the purpose `batch`."""

    def __init__(self, store: FileStore, max_bytes: int, max_batch_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._max_batch_bytes = max_batch_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, tenant_id = Headers(scope=scope), request_state(scope).caller().tenant_id
        stated = headers.get("content-length", "0")
        expected_bytes = max(0, int(stated) - FORM_BYTES) if stated.isdecimal() else 0
        parser = MultipartParser(headers.get("content-type", ""))
        with answering_files():
            await self._store.require_room(tenant_id, expected_bytes)
            content = await asyncio.to_thread(self._store.contents.create, expected_bytes)
            try:
                form = _Form(content, self._max_bytes)
                await form.read(parser, receive)
                file = self._file(form, tenant_id)
                await self._store.add(file, content)
            finally:
                await asyncio.shield(asyncio.to_thread(content.discard))
        await send_body(send, 200, orjson.dumps(file_object(file)))

    def _file(self, form: "_Form", tenant_id: str) -> StoredFile:
        """Raises: APIError: 400, naming the field that is missing or invalid."""
        if form.filename is None:
            raise missing("file")
        purpose = form.fields.get("purpose")
        if purpose is None:
            raise missing("purpose")
        if purpose not in UPLOADED:
            raise unsupported_value("purpose", purpose, UPLOADED)
        if purpose == Purpose.BATCH and form.content.size > self._max_batch_bytes:
            raise _too_large(self._max_batch_bytes)
        now = datetime.now(UTC)
        expires_at = _expiry(form.fields, now)
        if expires_at is None and purpose == Purpose.BATCH:
            expires_at = now + BATCH_FILE_LIFE
        content = form.content
        return StoredFile(
            *(new_file_id(), tenant_id, form.filename, Purpose(purpose), content.size, content.sha256, now, expires_at)
        )


class _Form:
    """The form of an upload: its fields, and its file's content on the disk."""

    def __init__(self, content: NewContent, max_bytes: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.content = content
        self._max_bytes = max_bytes
        self._field: str | None = None
        self._text = b""
        self._unwritten = bytearray()

    async def read(self, parser: MultipartParser, receive: Receive) -> None:
        async for piece in _pieces(receive):
            for event in parser.feed(piece):
                if isinstance(event, Part):
                    self._begin(event)
                elif self._field is not None:
                    self._extend(event.content)
                else:
                    self._unwritten += event.content
            if len(self._unwritten) >= _WRITE_BYTES:
                await self._write()
        parser.finish()
        self._end_field()
        await self._write()

    def _begin(self, part: Part) -> None:
        self._end_field()
        name = part.name
        if name == "file":
            if self.filename is not None:
                raise invalid("file", "Invalid 'file': expected one file.")
            self.filename = (part.filename or "upload").replace("\0", "")[-MAX_FILENAME_CHARS:]
            self._field = None
        elif name not in _FIELDS or name in self.fields:
            raise unsupported(name[:64])
        else:
            self._field, self._text = name, b""

    def _extend(self, content: bytes) -> None:
        self._text += content
        if len(self._text) > _MAX_FIELD_BYTES:
            raise invalid(self._field, f"Invalid '{self._field}': longer than {_MAX_FIELD_BYTES} bytes.")

    def _end_field(self) -> None:
        if self._field is not None:
            self.fields[self._field] = self._text.decode("utf-8", errors="replace")
            self._field = None

    async def _write(self) -> None:
        if self.content.size + len(self._unwritten) > self._max_bytes:
            raise _too_large(self._max_bytes)
        content, self._unwritten = bytes(self._unwritten), bytearray()
        await asyncio.to_thread(self.content.write, content)


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """The body as it arrives.

    Raises:
        APIError: 408, the client has sent nothing for `MAX_BODY_SECONDS`.
        ClientGone: the client disconnected.
    """
    more = True
    while more:
        try:
            async with asyncio.timeout(MAX_BODY_SECONDS):
                message = await receive()
        except TimeoutError:
            headers = {"connection": "close"}
            raise APIError(
                408, "Timed out while reading the request body.", code="request_timeout", headers=headers
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _expiry(fields: dict[str, str], now: datetime) -> datetime | None:
    anchor, seconds = fields.get(_ANCHOR), fields.get(_SECONDS)
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise missing(_ANCHOR) if anchor is None else only_value(_ANCHOR, anchor, "created_at")
    if seconds is None:
        raise missing(_SECONDS)
    low, high = EXPIRY_RANGE_S
    if not (seconds.isascii() and seconds.isdecimal() and len(seconds) < 10 and low <= int(seconds) <= high):
        raise invalid(_SECONDS, f"Invalid '{_SECONDS}': expected an integer between {low} and {high}.")
    return now + timedelta(seconds=int(seconds))


def _too_large(max_bytes: int) -> APIError:
    return APIError(413, f"File too large. The maximum is {max_bytes} bytes.", param="file", code="file_too_large")
