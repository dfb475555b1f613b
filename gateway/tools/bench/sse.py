"""Decodes server-sent events from a byte stream (HTML standard, 9.2.6)."""

import re

MAX_EVENT_BYTES = 16 * 1024**2

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(Exception):
    """A line or an event exceeds `MAX_EVENT_BYTES`."""


class EventDecoder:
    """Takes bytes and returns the data of complete events, in order. Comments, event names and ids are ignored. Data
    that does not end with a blank line is never returned."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._at_start = True

    def feed(self, piece: bytes) -> list[bytes]:
        """
        Raises:
            EventTooLarge: more than `MAX_EVENT_BYTES` without a complete event.
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
        """The data of the event that this line completes."""
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
