"""Answers that arrive in parts: another server has parsed reasoning and tool calls."""

from dataclasses import dataclass

from engine.request import TextDelta
from gateway.speech.output_parser import OutputParser, ParsedDelta
from gateway.speech.pieces import CallBegun, Piece


@dataclass(frozen=True, slots=True)
class StructuredDelta(TextDelta):
    """A delta of an answer that another server has parsed. `text`: the visible text in `pieces`.

    `reasoning_tokens`: further tokens that the server reports as reasoning. `prompt_tokens`: of the prompt, as the
    server reports them; None: not reported so far. `is_estimated`: whether the usage of the choice, with this delta, is
    an estimate; a later delta may correct it.
    """

    pieces: tuple[Piece, ...] = ()
    reasoning_tokens: int = 0
    prompt_tokens: int | None = None
    is_estimated: bool = False


class StructuredParser(OutputParser):
    """Passes the pieces of structured deltas on."""

    def parse(self, choice: int, delta: TextDelta) -> ParsedDelta:
        """The next delta of a choice."""
        if not isinstance(delta, StructuredDelta):
            return super().parse(choice, delta)
        if any(isinstance(piece, CallBegun) for piece in delta.pieces):
            self._called.add(choice)
        reason = self._finish_reason(choice, delta.finish_reason)
        return ParsedDelta(choice, delta, delta.pieces, delta.reasoning_tokens, reason)
