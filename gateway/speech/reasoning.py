"""Separates reasoning from the answer: a span at the start, between two markers.

Later markers are text: a model may write about them.
"""

from dataclasses import replace
from enum import Enum, auto

from engine.request import TextDelta
from engine.text.reasoning_span import WHITESPACE, ReasoningTracker, SpanState
from gateway.speech.output_parser import Reader
from gateway.speech.overlap import overlap
from gateway.speech.pieces import Piece, Reasoning


class _Place(Enum):
    BEFORE = auto()
    INSIDE = auto()
    BEHIND = auto()
    IN_ANSWER = auto()


class ReasoningReader:
    """Reads the reasoning span, and passes the text after it to the reader `answer`.

    `tracker` decides where the span starts and ends. It processes a delta's tokens before the reader gets the delta's
    text, which may lag behind the tokens. Whitespace around the span is dropped. A span without an end is the whole
    answer.
    """

    def __init__(self, tracker: ReasoningTracker, answer: Reader) -> None:
        self.tracker = tracker
        self._answer = answer
        self._place = _Place.INSIDE if tracker.has_span else _Place.BEFORE
        self._held = ""
        self._label = "" if tracker.has_span else tracker.label
        """Text to drop after the begin marker."""
        self._has_text = False
        self._spelled_ends = 0

    def read(self, delta: TextDelta) -> list[Piece]:
        ended = delta.finish_reason is not None
        text, self._held = self._held + delta.text, ""
        pieces: list[Piece] = []
        if self._place is _Place.BEFORE:
            text = self._before(text, ended)
        if self._place is _Place.INSIDE:
            text = self._inside(text, ended, pieces)
        if self._place is _Place.BEHIND:
            text = text.lstrip()
            if text:
                self._place = _Place.IN_ANSWER
        if text or ended:
            pieces += self._answer.read(replace(delta, text=text))
        return pieces

    def _before(self, text: str, ended: bool) -> str:
        """Decide whether there is a span. Returns the text that is not held."""
        begin, visible = self.tracker.begin, text.lstrip(WHITESPACE)
        is_undecided = self.tracker.state is SpanState.BEFORE
        lags = self.tracker.has_span and len(visible) < len(begin) and begin.startswith(visible)
        if not ended and (is_undecided or lags):
            self._held = text
            return ""
        if self.tracker.has_span:
            self._place = _Place.INSIDE
            return visible.removeprefix(begin)
        self._place = _Place.IN_ANSWER
        return text

    def _inside(self, text: str, ended: bool, pieces: list[Piece]) -> str:
        """Read the text of the span. Returns the text after it."""
        if not self._has_text:
            text = text.lstrip()
        if self._label:
            if not ended and text != self._label and self._label.startswith(text):
                self._held = text
                return ""
            text, self._label = text.removeprefix(self._label).lstrip(), ""
        reasoning, end, behind = self._cut(text)
        if end:
            self._place = _Place.BEHIND
        elif not ended:
            reasoning = reasoning[: len(reasoning) - overlap(reasoning, self.tracker.end)]
        reasoning = reasoning.rstrip()
        if reasoning:
            pieces.append(Reasoning(reasoning))
            self._has_text = True
        if not end and not ended:
            self._held = text[len(reasoning) :]
        return behind

    def _cut(self, text: str) -> tuple[str, str, str]:
        """Partition at the marker that ends the span, as `str.partition`. Markers within the reasoning are skipped."""
        marker, tracker, begin = self.tracker.end, self.tracker, 0
        while (place := text.find(marker, begin)) >= 0:
            if tracker.state is SpanState.AFTER and self._spelled_ends == tracker.spelled_ends:
                return text[:place], marker, text[place + len(marker) :]
            self._spelled_ends += 1
            begin = place + len(marker)
        return text, "", ""
