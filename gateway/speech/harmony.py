"""The dialect of gpt-oss (OpenAI's harmony format, https://github.com/openai/harmony): an answer of several messages.

    <|channel|>analysis<|message|>..<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>
    <|start|>assistant<|channel|>final<|message|>..<|return|>

The prompt ends with `<|start|>assistant`. Analysis is reasoning; final, and commentary without a recipient, is text.
"""

import re
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from enum import Enum, auto

from engine.request import TextDelta
from engine.text.dialect import CHANNEL_MARKERS
from gateway.speech.overlap import overlap
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Reasoning, Text

START, CHANNEL, MESSAGE = CHANNEL_MARKERS[:3]
_ANY_MARKER = re.compile("|".join(map(re.escape, CHANNEL_MARKERS)))
_ANY_SPELLED = re.compile(_ANY_MARKER.pattern.encode())
_LONGEST = max(map(len, CHANNEL_MARKERS))
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]+)")
_FUNCTIONS = "functions."
_ANALYSIS = "analysis"


class ChannelTracker:
    """Tracks an answer's tokens: which markers of its text are tokens of their own, and how many tokens are reasoning.

    `ids`: the token of each marker. `token_bytes`: bytes of a token.
    """

    def __init__(self, ids: Mapping[str, int], token_bytes: Callable[[int], bytes]) -> None:
        self.are_tokens: deque[bool] = deque()
        """For each marker in the text, in order and not yet read: whether it is a token; others are spelled."""
        self._marker_of = {id: marker for marker, id in ids.items()}
        self._token_bytes = token_bytes
        self._spelled = b""
        self._header: bytes | None = b""
        self._header_tokens = 0
        self._is_analysis = False

    def add(self, token_ids: Sequence[int]) -> int:
        """Process the next tokens. Returns how many more are known to be reasoning, markers included."""
        return sum(map(self._add_one, token_ids))

    def _add_one(self, token_id: int) -> int:
        marker = self._marker_of.get(token_id)
        text = self._token_bytes(token_id)
        if marker is None:
            self._find_spelled(text)
        else:
            self.are_tokens.append(True)
            self._spelled = b""
        if self._header is None:
            if marker is None:
                return int(self._is_analysis)
            was_analysis, self._is_analysis = self._is_analysis, False
            begins = marker in (START, CHANNEL)  # another message, whose token this is
            self._header, self._header_tokens = text if marker == CHANNEL else b"", int(begins)
            return int(was_analysis and not begins)
        self._header_tokens += 1
        if marker != MESSAGE:
            self._header += b"" if marker == START else text
            return 0
        self._is_analysis = _channel_of(self._header.decode(errors="replace")) == _ANALYSIS
        self._header = None
        return self._header_tokens if self._is_analysis else 0

    def _find_spelled(self, text: bytes) -> None:
        self._spelled += text
        end = 0
        for match in _ANY_SPELLED.finditer(self._spelled):
            self.are_tokens.append(False)
            end = match.end()
        self._spelled = self._spelled[max(end, len(self._spelled) - _LONGEST + 1) :]


class _Place(Enum):
    BEFORE = auto()
    """Nothing but white space was read."""
    HEADER = auto()
    BODY = auto()


class HarmonyReader:
    """Reads one choice. An answer that does not begin with a header is text.

    `names`: the declared tools; a call of another one is returned as text. `most`: maximum number of calls; further
    ones are dropped. `new_id`: index of a call -> its id. `tracker` processes a delta's tokens before the reader gets
    its text. An answer that ends within a message has what is there of it.
    """

    def __init__(
        self, tracker: ChannelTracker, names: Container[str], most: int | None, new_id: Callable[[int], str]
    ) -> None:
        self._tracker, self._names, self._most, self._new_id = tracker, names, most, new_id
        self._place = _Place.BEFORE
        self._held = ""
        self._header = ""
        self._calls = 0
        self._piece: Callable[[str], Piece] | None = Text

    def read(self, delta: TextDelta) -> list[Piece]:
        ended = delta.finish_reason is not None
        text, self._held = self._held + delta.text, ""
        pieces: list[Piece] = []
        if self._place is _Place.BEFORE:
            opening = text.lstrip()
            if not ended and any(each.startswith(opening) for each in (CHANNEL, START, "to=")):
                self._held = text
                return pieces
            is_header = opening.startswith((CHANNEL, START, "to="))
            self._place = _Place.HEADER if is_header else _Place.BODY
        at = 0
        for match in _ANY_MARKER.finditer(text):
            if not self._is_token():
                continue
            self._take(text[at : match.start()], pieces)
            self._mark(match[0], pieces)
            at = match.end()
        rest = text[at:]
        kept = 0 if ended else max(overlap(rest, marker) for marker in CHANNEL_MARKERS)
        self._take(rest[: len(rest) - kept], pieces)
        self._held = rest[len(rest) - kept :]
        return pieces

    def _is_token(self) -> bool:
        return self._tracker.are_tokens.popleft() if self._tracker.are_tokens else True

    def _take(self, text: str, pieces: list[Piece]) -> None:
        if self._place is _Place.HEADER:
            self._header += text
        elif text and self._piece is not None:
            pieces.append(self._piece(text))

    def _mark(self, marker: str, pieces: list[Piece]) -> None:
        if self._place is _Place.HEADER:
            if marker == MESSAGE:
                self._begin(pieces)
            else:
                self._header += marker
        else:  # in a body every marker ends the message; what precedes the next header is dropped
            self._place, self._header = _Place.HEADER, "" if marker != CHANNEL else marker

    def _begin(self, pieces: list[Piece]) -> None:
        """Decide by the header what the body is."""
        header, self._header, self._place = self._header.rpartition(START)[2], "", _Place.BODY
        recipient = _RECIPIENT.search(header.replace(CHANNEL, " "))
        if _channel_of(header) == _ANALYSIS:
            self._piece = Reasoning
        elif recipient is None:
            self._piece = Text
        elif (name := recipient[1].removeprefix(_FUNCTIONS)) not in self._names:
            pieces.append(Text(f"{recipient[0].strip()} "))
            self._piece = Text
        elif self._most is not None and self._calls >= self._most:
            self._piece = None
        else:
            index, self._calls = self._calls, self._calls + 1
            pieces.append(CallBegun(index, self._new_id(index), name))
            self._piece = lambda text: CallArguments(index, text)


def _channel_of(header: str) -> str:
    """The word after the marker of the channel; empty if there is none."""
    channel = header.rpartition(CHANNEL)[2] if CHANNEL in header else ""
    return next(iter(re.split(r"[\s<]", channel.lstrip(), maxsplit=1)), "")
