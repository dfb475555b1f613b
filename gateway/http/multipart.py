"""Parser of multipart/form-data (RFC 7578) in pieces, so that a file is never in memory as a whole."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from email.utils import collapse_rfc2231_value

from gateway.http.errors import APIError, invalid

MAX_PART_HEADER_BYTES = 8 * 1024
_BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]")


@dataclass(frozen=True, slots=True)
class Part:
    """The beginning of a part. `filename`: None: the part is a field of text."""

    name: str
    filename: str | None


@dataclass(frozen=True, slots=True)
class PartData:
    """A further piece of the part that began last."""

    content: bytes


class MultipartParser:
    """Parses one body. Memory is bounded by the pieces that it is fed, and `MAX_PART_HEADER_BYTES`.

    Raises:
        APIError: 400, the body is no multipart/form-data.
    """

    def __init__(self, content_type: str) -> None:
        message = Message()
        message["content-type"] = content_type
        boundary = message.get_param("boundary")
        if message.get_content_type() != "multipart/form-data":
            raise APIError(415, "The content type must be multipart/form-data.", code="unsupported_media_type")
        if not isinstance(boundary, str) or not _BOUNDARY.fullmatch(boundary):
            raise _malformed("the content type has no valid boundary")
        self._delimiter = b"\r\n--" + boundary.encode("ascii")
        self._buffer = b"\r\n"  # the first delimiter begins the body, without a line break
        self._state = self._preamble
        self._ended = False

    def feed(self, piece: bytes) -> Iterator[Part | PartData]:
        """The parts that begin in a further piece of the body, and what it has of their content, in their order."""
        self._buffer += piece
        while (event := self._state()) is not None:
            if event is not _NOTHING:
                yield event

    def finish(self) -> None:
        """Raises: APIError: the body is not complete."""
        if not self._ended:
            raise _malformed("it ends before its last boundary")

    def _preamble(self) -> "Part | PartData | None":
        found = self._buffer.find(self._delimiter)
        if found < 0:
            self._buffer = self._buffer[-len(self._delimiter) :]
            return None
        return self._pass_delimiter(found)

    def _after_delimiter(self) -> "Part | PartData | None":
        if self._buffer.startswith(b"--"):
            self._ended, self._state = True, self._epilogue
            return _NOTHING
        if len(self._buffer) < 2:
            return None
        if not self._buffer.startswith(b"\r\n"):
            raise _malformed("a boundary is not followed by a line break")
        self._state = self._headers
        return _NOTHING

    def _headers(self) -> "Part | PartData | None":
        end = self._buffer.find(b"\r\n\r\n")
        if end > MAX_PART_HEADER_BYTES or (end < 0 and len(self._buffer) > MAX_PART_HEADER_BYTES):
            raise _malformed(f"the headers of a part are over {MAX_PART_HEADER_BYTES} bytes")
        if end < 0:
            return None
        head, self._buffer = self._buffer[2:end], self._buffer[end + 4 :]
        self._state = self._content
        return _part(head)

    def _content(self) -> "Part | PartData | None":
        found = self._buffer.find(self._delimiter)
        if found >= 0:
            content = self._buffer[:found]
            self._pass_delimiter(found)
            return PartData(content)
        kept = len(self._delimiter) - 1
        if len(self._buffer) <= kept:
            return None
        content, self._buffer = self._buffer[:-kept], self._buffer[-kept:]
        return PartData(content)

    def _epilogue(self) -> None:
        self._buffer = b""

    def _pass_delimiter(self, found: int) -> PartData:
        self._buffer = self._buffer[found + len(self._delimiter) :]
        self._state = self._after_delimiter
        return _NOTHING


_NOTHING = PartData(b"")


def _part(head: bytes) -> Part:
    for line in head.decode("utf-8", errors="replace").split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() != "content-disposition":
            continue
        message = Message()
        message["content-disposition"] = value.strip()
        disposition = message.get_content_disposition()
        field, filename = (message.get_param(each, header="content-disposition") for each in ("name", "filename"))
        if disposition == "form-data" and field is not None:
            return Part(collapse_rfc2231_value(field), None if filename is None else collapse_rfc2231_value(filename))
    raise _malformed("a part has no content-disposition with a name")


def _malformed(reason: str) -> APIError:
    return invalid(None, f"We could not parse the multipart body of your request: {reason}.", "invalid_multipart")
