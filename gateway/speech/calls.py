"""Finds tool calls in model output."""

from collections.abc import Callable, Container

from engine.request import TextDelta
from gateway.speech.overlap import overlap
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Text
from gateway.speech.tool_call_parsers import Attempt, Begun, Form, Heard, NewAttempt, NotACall, forced

_CLOSING = "}],; \t\r\n"


class CallReader:
    """Reads one choice that may call tools. Without a `form`, the choice consists of calls only.

    Text is returned at once, except a suffix that may become a marker, and whitespace at the start or after a call,
    which is dropped before a call and at the end. A call is returned when its arguments start; the arguments follow as
    they arrive. Malformed calls and calls of undeclared tools are returned as text, without loss. If the error occurs
    within the arguments, they stay incomplete JSON: the reader never completes them, since a client would act on it.

    `most`: maximum number of calls; further ones are dropped. `new_id`: index of a call -> its id.
    """

    def __init__(
        self, form: Form | None, names: Container[str], most: int | None, new_id: Callable[[int], str]
    ) -> None:
        self._form = form
        self._names = names
        self._most = most
        self._new_id = new_id
        self._calls = 0
        self._heard: Heard = []
        self._attempt: Attempt | None = None
        self._held = ""
        """Text that was read and not returned: a suffix, or what the parser consumed since its last result."""
        self._marker_chars = 0
        """Prefix of `_held` that is text if the parser fails; the rest may contain another call."""
        self._may_be_layout = True
        self._at_start = True
        if form is None:
            self._begin(forced, 0)

    def read(self, delta: TextDelta) -> list[Piece]:
        pieces: list[Piece] = []
        text: str | None = delta.text
        while text is not None:
            text = self._in_text(text, pieces) if self._attempt is None else self._in_call(text, pieces)
        if delta.finish_reason is not None:
            self._end(pieces)
        return _joined(pieces)

    def _in_text(self, text: str, pieces: list[Piece]) -> str | None:
        """Return the text that cannot be part of a call. The result is the rest after a marker, or None."""
        text, self._held, form = self._held + text, "", self._form
        if form is None:
            self._say(text, pieces)
            return None
        layout = len(text) - len(text.lstrip())
        if form.bare and self._at_start and text[layout : layout + 1] == "{":
            self._held = text[:layout]
            self._begin(form.bare, layout + 1)
            return text[layout:]
        found = [(place, marker) for marker in form.attempts if (place := text.find(marker)) >= 0]
        if not found:
            end = len(text) - max(overlap(text, marker) for marker in form.attempts)
            if self._may_be_layout and layout >= end:
                self._held = text
            else:
                self._say(text[:end], pieces)
                self._held = text[end:]
            return None
        place, marker = min(found)
        begins = place
        if self._may_be_layout and layout >= place:
            begins = 0
        self._say(text[:begins], pieces)
        behind = place + len(marker)
        self._held = text[begins:behind]
        self._begin(form.attempts[marker], behind - begins)
        return text[behind:]

    def _in_call(self, text: str, pieces: list[Piece]) -> str | None:
        """Feed the parser. The result is the text after its end or, if it fails, the text to read again."""
        attempt, begins = self._attempt, 0
        assert attempt is not None
        for end, char in enumerate(text, 1):
            failed = ended = False
            try:
                attempt.send(char)
            except StopIteration:
                ended = True
            except NotACall:
                failed = True
            if self._heard:
                self._tell(pieces)
                begins, self._held, self._marker_chars = end, "", 0
            if ended:
                self._attempt, self._held = None, ""
                return text[end:]
            if failed:
                held, self._held, self._attempt = self._held + text[begins:], "", None
                self._say(held[: self._marker_chars], pieces)
                return held[self._marker_chars :]
        self._held += text[begins:]
        return None

    def _end(self, pieces: list[Piece]) -> None:
        """Return the text that is still held."""
        held, self._held = self._held, ""
        if self._attempt is not None and self._calls and not self._marker_chars:
            held = "" if self._is_closing(held) else held
        elif self._calls and not held.strip():
            held = ""
        self._say(held, pieces)

    def _is_closing(self, held: str) -> bool:
        """Whether the text is what may come after a call, of which any part may be missing."""
        closing = () if self._form is None else self._form.closing
        text = "".join(held.split()).lstrip(_CLOSING)
        return any("".join(closing[first:]).startswith(text) for first in range(len(closing) + 1))

    def _begin(self, attempt: NewAttempt, marker_chars: int) -> None:
        self._attempt = attempt(self._names, self._heard)
        self._marker_chars = marker_chars
        next(self._attempt)

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Text(text))
            self._at_start = self._may_be_layout = False

    def _tell(self, pieces: list[Piece]) -> None:
        for each in self._heard:
            if isinstance(each, Begun):
                self._calls += 1
            if not each or (self._most is not None and self._calls > self._most):
                continue
            index = self._calls - 1
            pieces.append(
                CallBegun(index, self._new_id(index), each.name)
                if isinstance(each, Begun)
                else CallArguments(index, each)
            )
        self._heard.clear()
        self._at_start, self._may_be_layout = False, True


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Merge adjacent pieces of the same kind."""
    joined: list[Piece] = []
    for piece in pieces:
        match joined[-1:], piece:
            case [Text(before)], Text(text):
                joined[-1] = Text(before + text)
            case [CallArguments(index, before)], CallArguments(same, text) if index == same:
                joined[-1] = CallArguments(index, before + text)
            case _:
                joined.append(piece)
    return joined
