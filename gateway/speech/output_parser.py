"""Parses an answer once: what the client, its session, the stored response and the usage record are given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import FinishReason, TextDelta, joined_delta
from engine.text.reasoning_span import ReasoningTracker
from gateway.speech.pieces import CallBegun, Piece, Text

TOOL_CALLS = "tool_calls"
"""The finish reason of a choice that ended with calls of tools."""


class Reader(Protocol):
    """Reads the text of one choice.

    Invariants: what it returns does not depend on how the text was cut into deltas, but for where pieces of the same
    kind are cut; with the last delta everything that it held back is returned.
    """

    def read(self, delta: TextDelta) -> list[Piece]: ...


class PlainReader:
    """Returns all text as it is."""

    def read(self, delta: TextDelta) -> list[Piece]:
        return [Text(delta.text)] if delta.text else []


@dataclass(frozen=True, slots=True)
class ChoiceParser:
    """How one choice is parsed. `reasoning` counts its reasoning tokens; the reader may follow the same tracker."""

    reader: Reader
    reasoning: ReasoningTracker | None = None


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """A delta of choice `choice`, which is the index that the client sees, and the pieces of the answer in it.

    `reasoning_tokens`: how many more of the choice's tokens are known to be reasoning. `finish_reason` is OpenAI's, and
    None while the choice has not ended.
    """

    choice: int
    delta: TextDelta
    pieces: Sequence[Piece] = ()
    reasoning_tokens: int = 0
    finish_reason: str | None = None

    @classmethod
    def joined(cls, parts: Sequence["ParsedDelta"]) -> "ParsedDelta":
        """All deltas of one choice as one: the whole answer."""
        return cls(
            parts[-1].choice,
            joined_delta([part.delta for part in parts]),
            [piece for part in parts for piece in part.pieces],
            sum(part.reasoning_tokens for part in parts),
            parts[-1].finish_reason,
        )


def _plain(choice: int) -> ChoiceParser:
    return ChoiceParser(PlainReader())


class OutputParser:
    """Parses the choices of one answer. `choice_parser` makes the parser of each, by its index."""

    def __init__(self, choice_parser: Callable[[int], ChoiceParser] = _plain) -> None:
        self._new_parser = choice_parser
        self._parsers: dict[int, ChoiceParser] = {}
        self._called: set[int] = set()

    def parse(self, choice: int, delta: TextDelta) -> ParsedDelta:
        """Parse a delta, the next of its choice."""
        parser = self._parsers.get(choice)
        if parser is None:
            parser = self._parsers[choice] = self._new_parser(choice)
        reasoning_tokens = 0
        if parser.reasoning is not None:
            reasoning_tokens = parser.reasoning.add(delta.token_ids)
            if isinstance(delta.stop, int):
                parser.reasoning.add((delta.stop,))  # its text may be shown; it is not among the tokens
        pieces = parser.reader.read(delta)
        if any(isinstance(piece, CallBegun) for piece in pieces):
            self._called.add(choice)
        return ParsedDelta(choice, delta, pieces, reasoning_tokens, self._finish_reason(choice, delta.finish_reason))

    def _finish_reason(self, choice: int, reason: FinishReason | None) -> str | None:
        """A choice that was cut short ends with `length`, also amid a call."""
        if reason is None:
            return None
        return TOOL_CALLS if reason is FinishReason.STOP and choice in self._called else reason.value
