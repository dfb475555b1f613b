"""Server-sent events from bytes, however these are cut (WHATWG HTML, 9.2.6)."""

MAX_EVENT_BYTES = 8 * 1024 * 1024
"""Bound on one event: a chunk of an answer with many log-probabilities is far smaller."""


class EventTooLong(ValueError):
    """An event, or a line of one, is longer than `MAX_EVENT_BYTES`."""


class EventReader:
    """Collects the data of events. Lines end with LF, CR or CRLF; comments and other fields are skipped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in this chunk.

        Raises:
            EventTooLong: the server sends an event without end.
        """
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if chunk.endswith(b"\r"):
            self._after_cr = True
        text = self._rest + chunk
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        events = [event for line in lines if (event := self._line(line)) is not None]
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong
        return events

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data, self._size = self._data, [], 0
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
            self._size += len(value) + 1
            if self._size > MAX_EVENT_BYTES:
                raise EventTooLong
        return None
