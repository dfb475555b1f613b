"""Where the reasoning of an answer begins and ends, decided token by token: for its text, its count and its grammar."""

from collections.abc import Callable, Sequence
from enum import Enum, auto

WHITESPACE = " \t\n\r\f\v"
"""Characters that may precede the begin marker: ASCII white space, which text and bytes agree on."""


class SpanState(Enum):
    """Of one answer."""

    BEFORE = auto()
    INSIDE = auto()
    AFTER = auto()
    """The answer proper: the span has ended, or there is none."""


class ReasoningTracker:
    """Tracks the reasoning span of one answer, whose tokens it is given in order.

    Where each marker is a token of its own (`ids`: begin, end), that token alone is the marker, as in vLLM's reasoning
    parsers and for `AfterReasoning`: the same characters spelled with other tokens are text. Elsewhere the marker is
    the first occurrence of its bytes. `opened`: the prompt has begun the span. `token_bytes` maps a token id to bytes.
    `label`: the text after the begin marker, which is no reasoning.
    """

    def __init__(
        self,
        begin: str,
        end: str,
        ids: tuple[int, int] | None,
        token_bytes: Callable[[int], bytes],
        *,
        opened: bool,
        label: str = "",
    ) -> None:
        self.state = SpanState.INSIDE if opened else SpanState.BEFORE
        self.has_span = opened
        self.spelled_ends = 0
        """Occurrences of the end marker's characters in the span before the one that ends it."""
        self.begin, self.end, self.label = begin, end, label
        self._begin, self._end = begin.encode(), end.encode()
        self._begin_id = None if ids is None else ids[0]
        self._end_id = None if ids is None else ids[1]
        self._token_bytes = token_bytes
        self._tail = b""
        self._undecided_tokens = 0

    def add(self, token_ids: Sequence[int]) -> int:
        """Process the next tokens. Returns how many more tokens are known to belong to the span, markers included."""
        if self.state is SpanState.AFTER:
            return 0
        return sum(map(self._add_one, token_ids))

    def _add_one(self, token_id: int) -> int:
        match self.state:
            case SpanState.BEFORE:
                return self._before(token_id)
            case SpanState.INSIDE:
                self._inside(token_id)
                return 1
            case SpanState.AFTER:
                return 0

    def _before(self, token_id: int) -> int:
        self._tail = (self._tail + self._token_bytes(token_id)).lstrip(WHITESPACE.encode())
        if self._begin_id is not None:
            begins, undecided = token_id == self._begin_id, not self._tail
        else:
            begins, undecided = self._tail.startswith(self._begin), self._begin.startswith(self._tail)
        if begins:
            self.has_span, self.state = True, SpanState.INSIDE
            self._tail = self._tail[len(self._begin) :]
            self._find_end()
            return self._undecided_tokens + 1
        if not undecided:
            self.state = SpanState.AFTER
        self._undecided_tokens += bool(self._tail)
        return 0

    def _inside(self, token_id: int) -> None:
        if token_id == self._end_id:
            self.state = SpanState.AFTER
            return
        self._tail += self._token_bytes(token_id)
        self._find_end()

    def _find_end(self) -> None:
        occurrences = self._tail.count(self._end)
        if occurrences and self._end_id is None:
            self.state = SpanState.AFTER
            return
        if occurrences:
            self.spelled_ends += occurrences
            self._tail = self._tail[self._tail.rindex(self._end) + len(self._end) :]
        self._tail = self._tail[max(0, len(self._tail) - len(self._end) + 1) :]
