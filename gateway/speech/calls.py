"""Finds calls of tools in what a model says."""

from collections.abc import Callable, Container

from engine.request import TextDelta
from gateway.speech.overlap import overlap
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Text
from gateway.speech.tool_call_parsers import Attempt, Begun, Form, Heard, NotACall, forced

_CLOSING_TAG = "</tool_call>"
_CLOSING = "}],; \t\r\n"


class CallReader:
    """Reads one choice that may call tools or, without a form, that is nothing but calls.

    Text comes out at once, but for an end that may become a marker, and for space in front of all text or behind a
    call, which goes where a call follows or nothing does. A call comes out when its arguments begin, and they follow as
    they come. What is no call after all, malformed or of a tool that was not declared, comes out as text, to the last
    character. Where that shows only when arguments have begun, they stay as they are, no JSON: nothing is made up to
    finish them, as a client would act on it.

    `most` calls are told, others are left out. `new_id` names a call by its index.
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
        """What was read and not told: an end of text, or what an attempt has taken since it last told anything."""
        self._marker_chars = 0
        """Of what an attempt holds, what is text if it fails; what follows may be another call."""
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
        """Tell what is text for certain. Returns what follows where a call may begin, if it does."""
        text, self._held, form = self._held + text, "", self._form
        if form is None:
            self._say(text, pieces)
            return None
        layout = len(text) - len(text.lstrip())
        if form.bare and self._at_start and text[layout : layout + 1] == "{":
            self._held = text[:layout]
            self._begin(form.attempt, layout + 1)
            return text[layout:]
        place = text.find(form.marker)
        if place < 0:
            end = len(text) - overlap(text, form.marker)
            if self._may_be_layout and layout >= end:
                self._held = text
            else:
                self._say(text[:end], pieces)
                self._held = text[end:]
            return None
        begins = place
        if self._may_be_layout and layout >= place:
            begins = 0
        self._say(text[:begins], pieces)
        behind = place + len(form.marker)
        self._held = text[begins:behind]
        self._begin(form.attempt, behind - begins)
        return text[behind:]

    def _in_call(self, text: str, pieces: list[Piece]) -> str | None:
        """Tell what an attempt hears. Returns what follows its end, or all that is to be read again if it fails."""
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
        """No more will come."""
        held, self._held = self._held, ""
        if self._attempt is not None and self._calls and not self._marker_chars:
            # What closes a call may be missing.
            held = "" if _CLOSING_TAG.startswith(held.strip(_CLOSING)) else held
        elif self._calls and not held.strip():
            held = ""
        self._say(held, pieces)

    def _begin(self, attempt: Callable[[Container[str], Heard], Attempt], marker_chars: int) -> None:
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
            if self._most is not None and self._calls > self._most:
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
    """Without cuts between pieces of the same kind."""
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
