"""What a model says to itself before it answers: a span at the beginning of the answer, between two markers.

Markers further on are text: a model may talk about them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto

from engine.request import TextDelta
from engine.text.dialect import Markers
from gateway.speech.overlap import overlap
from gateway.speech.pieces import Piece, Reasoning
from gateway.speech.speech import Reader


class _Place(Enum):
    BEFORE = auto()
    INSIDE = auto()
    BEHIND = auto()
    IN_ANSWER = auto()


class ReasoningReader:
    """Reads the span, and has `answer` read what follows. `opened`: the prompt has begun it.

    Space around the span's text and behind its end is layout, and goes. A span that never ends is all there is.
    """

    def __init__(self, markers: Markers, opened: bool, answer: Reader) -> None:
        self._markers = markers
        self._answer = answer
        self._place = _Place.INSIDE if opened else _Place.BEFORE
        self._held = ""
        self._said = False

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
        """Whether there is a span. Returns what is not held."""
        begin, visible = self._markers.begin, text.lstrip()
        if visible.startswith(begin):
            self._place = _Place.INSIDE
            return visible[len(begin) :]
        if begin.startswith(visible) and not ended:
            self._held = text
            return ""
        self._place = _Place.IN_ANSWER
        return text

    def _inside(self, text: str, ended: bool, pieces: list[Piece]) -> str:
        """Tell what is of the span. Returns what is behind it."""
        if not self._said:
            text = text.lstrip()
        said, end, behind = text.partition(self._markers.end)
        if end:
            self._place = _Place.BEHIND
        elif not ended:
            said = said[: len(said) - overlap(said, self._markers.end)]
        said = said.rstrip()
        if said:
            pieces.append(Reasoning(said))
            self._said = True
        if not end and not ended:
            self._held = text[len(said) :]
        return behind


class ReasoningCount:
    """Counts the tokens of a span as they come, those of its markers included: to the last in which some of it is.

    It looks at the tokens themselves, as the text of a delta may lag behind them. `token_bytes` is what a token stands
    for.
    """

    def __init__(self, markers: Markers, opened: bool, token_bytes: Callable[[int], bytes]) -> None:
        self._begin, self._end = markers.begin.encode(), markers.end.encode()
        self._token_bytes = token_bytes
        self._place = _Place.INSIDE if opened else _Place.BEFORE
        self._read = b""
        self._undecided = 0

    def count(self, token_ids: Sequence[int]) -> int:
        """How many more tokens are known to be reasoning with these."""
        return sum(map(self._count_one, token_ids))

    def _count_one(self, token_id: int) -> int:
        if self._place is _Place.IN_ANSWER:
            return 0
        self._read += self._token_bytes(token_id)
        if self._place is _Place.INSIDE:
            self._look_for_end()
            return 1
        self._read = self._read.lstrip()
        if self._read.startswith(self._begin):
            counted, self._read = self._undecided + 1, self._read[len(self._begin) :]
            self._place = _Place.INSIDE
            self._look_for_end()
            return counted
        if not self._begin.startswith(self._read):
            self._place = _Place.IN_ANSWER
        self._undecided += bool(self._read)
        return 0

    def _look_for_end(self) -> None:
        if self._end in self._read:
            self._place = _Place.IN_ANSWER
        self._read = self._read[-len(self._end) + 1 :]


class ReasoningTally:
    """Counts for each choice of one answer. `counter` makes what counts for one, None: there is nothing to count."""

    def __init__(self, counter: Callable[[int], ReasoningCount] | None) -> None:
        self._new_counter = counter
        self._counters: dict[int, ReasoningCount] = {}

    def count(self, choice: int, token_ids: Sequence[int]) -> int:
        """As `ReasoningCount.count`."""
        if self._new_counter is None:
            return 0
        counter = self._counters.get(choice)
        if counter is None:
            counter = self._counters[choice] = self._new_counter(choice)
        return counter.count(token_ids)
