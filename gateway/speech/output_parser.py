"""Parses an answer once, for the client, its session, the stored response and the usage record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.request import FinishReason, TextDelta, joined_delta
from gateway.speech.pieces import CallBegun, Piece, Text

TOOL_CALLS = "tool_calls"
"""Finish reason of a choice that ended with tool calls."""


class Reader(Protocol):
    """Reads the text of one choice.

    Invariants: the pieces do not depend on how the text is split into deltas, except where pieces of the same kind are
    split; the last delta returns all held text.
    """

    def read(self, delta: TextDelta) -> list[Piece]: ...


class TokenCounter(Protocol):
    """Counts the tokens of one choice that are reasoning."""

    def add(self, token_ids: Sequence[int]) -> int:
        """Process the next tokens. Returns how many more are known to be reasoning."""
        ...


class PlainReader:
    """Returns all text unchanged."""

    def read(self, delta: TextDelta) -> list[Piece]:
        return [Text(delta.text)] if delta.text else []


@dataclass(frozen=True, slots=True)
class ChoiceParser:
    """Parser of one choice. `reasoning` counts its reasoning tokens; the reader may share the tracker."""

    reader: Reader
    reasoning: TokenCounter | None = None


@dataclass(frozen=True, slots=True)
class ParsedDelta:
    """A delta of choice `choice` (the client's index) and its pieces.

    `reasoning_tokens`: number of further tokens of the choice that are reasoning. `finish_reason`: OpenAI's; None until
    the choice ends.
    """

    choice: int
    delta: TextDelta
    pieces: Sequence[Piece] = ()
    reasoning_tokens: int = 0
    finish_reason: str | None = None

    @classmethod
    def joined(cls, parts: Sequence["ParsedDelta"]) -> "ParsedDelta":
        """All deltas of one choice merged into one."""
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
    """Parses the choices of one answer. `choice_parser`: index -> parser of that choice."""

    def __init__(self, choice_parser: Callable[[int], ChoiceParser] = _plain) -> None:
        self._new_parser = choice_parser
        self._parsers: dict[int, ChoiceParser] = {}
        self._called: set[int] = set()

    def parse(self, choice: int, delta: TextDelta) -> ParsedDelta:
        """Parse the next delta of a choice."""
        parser = self._parsers.get(choice)
        if parser is None:
            parser = self._parsers[choice] = self._new_parser(choice)
        reasoning_tokens = 0
        if parser.reasoning is not None:
            reasoning_tokens = parser.reasoning.add(delta.token_ids)
            if isinstance(delta.stop, int):
                parser.reasoning.add((delta.stop,))  # not in `token_ids`, but its text may be shown
        pieces = parser.reader.read(delta)
        if any(isinstance(piece, CallBegun) for piece in pieces):
            self._called.add(choice)
        return ParsedDelta(choice, delta, pieces, reasoning_tokens, self._finish_reason(choice, delta.finish_reason))

    def _finish_reason(self, choice: int, reason: FinishReason | None) -> str | None:
        """OpenAI's finish reason. A choice that was cut off ends with `length`, also within a call."""
        if reason is None:
            return None
        return TOOL_CALLS if reason is FinishReason.STOP and choice in self._called else reason.value
