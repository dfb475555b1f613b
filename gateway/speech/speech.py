"""Reads the choices of one answer as they come, each with a reader of its own."""

from collections.abc import Callable
from typing import Protocol

from engine.request import FinishReason, TextDelta
from gateway.speech.pieces import CallBegun, Piece, Text

TOOL_CALLS = "tool_calls"
"""The finish reason of a choice that ended with calls of tools."""


class Reader(Protocol):
    """Reads one choice.

    Invariants: what it returns does not depend on how the text was cut into deltas, but for where pieces of the same
    kind are cut; with the last delta all that it held back comes out.
    """

    def read(self, delta: TextDelta) -> list[Piece]: ...


class PlainReader:
    """All is text."""

    def read(self, delta: TextDelta) -> list[Piece]:
        return [Text(delta.text)] if delta.text else []


class Speech:
    """The choices of one answer. `reader` makes one for each, by its number."""

    def __init__(self, reader: Callable[[int], Reader] = lambda choice: PlainReader()) -> None:
        self._new_reader = reader
        self._readers: dict[int, Reader] = {}
        self._called: set[int] = set()

    def read(self, choice: int, delta: TextDelta) -> list[Piece]:
        """What a delta, the next of its choice, says."""
        reader = self._readers.get(choice)
        if reader is None:
            reader = self._readers[choice] = self._new_reader(choice)
        pieces = reader.read(delta)
        for piece in pieces:
            if isinstance(piece, CallBegun):
                self._called.add(choice)
        return pieces

    def finish_reason(self, choice: int, reason: FinishReason) -> str:
        """Why the choice ended, as OpenAI says it. One that is cut short ends with `length` whatever it was about."""
        return TOOL_CALLS if reason is FinishReason.STOP and choice in self._called else reason.value
