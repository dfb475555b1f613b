"""Drafts from n-gram matches (prompt lookup decoding, Saxena 2023): proposes the tokens that followed an earlier
occurrence of the last tokens. It needs no model, costs almost nothing, and works where an answer quotes or repeats."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.request import Request
from engine.speculation.proposer import DraftWant

LONGEST_MATCH = 4
"""The maximum length of a match. The minimum is two tokens, as a single token predicts too little."""
CANDIDATES = 32
"""Earlier occurrences of the last two tokens that are compared, from the latest back."""

_NONE = -1


@dataclass(slots=True)
class _Pairs:
    """An index of the pairs of adjacent tokens of a request. Tokens are append-only.

    `latest`: by pair, the end position of its latest occurrence. `earlier[i]`: the end position of the occurrence
    before the one that ends at i.
    """

    request: Request
    latest: dict[tuple[int, int], int] = field(default_factory=dict)
    earlier: list[int] = field(default_factory=lambda: [_NONE])

    def catch_up(self) -> None:
        """Index new tokens. O(new tokens)."""
        tokens, latest, earlier = self.request.tokens, self.latest, self.earlier
        for end in range(len(earlier), len(tokens)):
            pair = tokens[end - 1], tokens[end]
            earlier.append(latest.get(pair, _NONE))
            latest[pair] = end

    def match_of_end(self) -> int:
        """The end position of the longest earlier match of the last tokens, the latest of equally long ones; `_NONE`
        where the last two tokens did not occur before. O(candidates)."""
        tokens = self.request.tokens
        last = len(tokens) - 1
        best, longest, end = _NONE, 1, self.earlier[last]
        for _ in range(CANDIDATES):
            if end == _NONE or longest == LONGEST_MATCH:
                break
            length = 2
            while length < LONGEST_MATCH and length <= end and tokens[end - length] == tokens[last - length]:
                length += 1
            if length > longest:
                best, longest = end, length
            end = self.earlier[end]
        return best


class NgramProposer:
    """A `Proposer` that looks up the last tokens of a request in its prompt and answer.

    A step costs O(depth + new tokens) per request, and O(its tokens) for the first step after its admission.
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
        """The tokens that followed the match. Where they reach the end of the tokens, they are repeated."""
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
