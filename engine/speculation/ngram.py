"""Guesses that what followed the last time will follow again. Needs no model, so it is nearly free, and is good where
an answer quotes, copies or repeats."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.request import Request
from engine.speculation.proposer import DraftWant

LONGEST_MATCH = 4
"""An occurrence that agrees with so many of the last tokens is as good as any. The shortest one has two: what a single
token says is too little."""
CANDIDATES = 32
"""So many earlier occurrences of the last two tokens are looked at, from the latest back."""

_NONE = -1


@dataclass(slots=True)
class _Pairs:
    """Where each pair of neighbours stands in a request's tokens, which only ever grow.

    `latest` is the position at which the latest occurrence of a pair ends; `earlier[i]` that at which the one before
    the occurrence that ends at i does.
    """

    request: Request
    latest: dict[tuple[int, int], int] = field(default_factory=dict)
    earlier: list[int] = field(default_factory=lambda: [_NONE])

    def catch_up(self) -> None:
        """O(tokens that are new)."""
        tokens, latest, earlier = self.request.tokens, self.latest, self.earlier
        for end in range(len(earlier), len(tokens)):
            pair = tokens[end - 1], tokens[end]
            earlier.append(latest.get(pair, _NONE))
            latest[pair] = end

    def match_of_end(self) -> int:
        """Where the occurrence ends that agrees furthest back with the end of the tokens, the latest of those that
        agree as far; none where the last two came for the first time. O(candidates)."""
        tokens = self.request.tokens
        last = len(tokens) - 1
        best, most, end = _NONE, 1, self.earlier[last]
        for _ in range(CANDIDATES):
            if end == _NONE or most == LONGEST_MATCH:
                break
            length = 2
            while length < LONGEST_MATCH and length <= end and tokens[end - length] == tokens[last - length]:
                length += 1
            if length > most:
                best, most = end, length
            end = self.earlier[end]
        return best


class NgramProposer:
    """Looks up the last tokens of a request among those before, prompt and answer alike.

    A step costs O(depth + new tokens) a request, and the first one after its admission O(its tokens).
    """

    def __init__(self, num_slots: int) -> None:
        self._pairs: list[_Pairs | None] = [None] * num_slots

    @property
    def name(self) -> str:
        return "ngram"

    @property
    def free(self) -> bool:
        return True

    def lag(self, request: Request) -> int:
        return 0

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        return [self._continue(want.request, want.depth) for want in wants]

    def _continue(self, request: Request, depth: int) -> Sequence[int]:
        """What came behind the match. Where that reaches the end of the tokens, it is taken to go on in a circle."""
        pairs = self._of(request)
        pairs.catch_up()
        end = pairs.match_of_end()
        if end == _NONE:
            return ()
        followed = request.tokens[end + 1 : end + 1 + depth]
        if len(followed) < depth:
            followed *= 1 + depth // len(followed)
        return followed[:depth]

    def _of(self, request: Request) -> _Pairs:
        assert request.slot is not None, f"{request.id} has no slot"
        pairs = self._pairs[request.slot]
        if pairs is None or pairs.request is not request:
            pairs = self._pairs[request.slot] = _Pairs(request)
        return pairs
