"""Server-sent events out of bytes that come in any pieces (HTML standard, 9.2.6)."""

import re

MAX_EVENT_BYTES = 16 * 1024**2

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(Exception):
    """A line or an event without end."""


class EventDecoder:
    """Feed it what arrives; it gives back the data of each event that is complete, in order. Comments, names and ids
    of events are passed over. What does not end with a blank line is no event and never comes out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """
        Raises:
            EventTooLarge: more than `MAX_EVENT_BYTES` have come to nothing.
        """
        text = self._rest + piece
        if self._at_start:
            if len(text) < len(_BYTE_ORDER_MARK):
                self._rest = text
                return []
            text, self._at_start = text.removeprefix(_BYTE_ORDER_MARK), False
        # A carriage return at the very end may be half of a line's end.
        held = text.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(text[:-1] if held else text)
        if held:
            self._rest += b"\r"
        events = []
        for line in lines:
            if (event := self._line(line)) is not None:
                events.append(event)
        if len(self._rest) + self._size > MAX_EVENT_BYTES:
            raise EventTooLarge
        return events

    def _line(self, line: bytes) -> bytes | None:
        """The event that this line ends."""
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
                self._size += len(value)
            return None
        if not self._data:
            return None
        event = b"\n".join(self._data)
        self._data, self._size = [], 0
        return event
