"""SentencePiece BPE by scores with ties merged from the left, as in llama.cpp's `llm_tokenizer_spm`.

The `tokenizers` library ranks merges regardless of their position. That is equivalent if all scores differ. If not,
this pre-tokenizer splits a text into its final pieces, which the library then looks up.
"""

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import pairwise

from tokenizers import NormalizedString, PreTokenizedString

_KEPT = 1 << 16
"""Words whose pieces are cached. The cache is cleared when it is full."""
_LONGEST_KEPT = 64


class LeftmostMerges:
    """A custom pre-tokenizer: each piece is a token, or a run of characters that no token contains.

    `scores`: scores of the tokens that result from merges. Costs O(n log n) of the longest stretch of text that tokens
    may span, and one lookup for each other character.
    """

    def __init__(self, scores: Mapping[str, float], alphabet: frozenset[str]) -> None:
        self._scores = dict(scores)
        self._alphabet = alphabet
        self._neighbours = {pair for token in self._scores for pair in pairwise(token)}
        """Pairs of adjacent characters in some token: no merge spans any other pair."""
        self._words: dict[str, list[str]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeftmostMerges) and (self._scores, self._alphabet) == (other._scores, other._alphabet)

    __hash__ = None  # type: ignore[assignment]

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        """Called by the library."""
        text.split(self._split)

    def pieces(self, text: str) -> list[str]:
        """The pieces; their concatenation is the text."""
        found: list[str] = []
        unknown = ""
        for piece in self._merged(text):
            if len(piece) == 1 and piece not in self._alphabet:
                unknown += piece
                continue
            if unknown:
                found.append(unknown)
                unknown = ""
            found.append(piece)
        return [*found, unknown] if unknown else found

    def _split(self, _: int, text: NormalizedString) -> list[NormalizedString]:
        return list(_cut(text, [len(piece) for piece in self.pieces(str(text))]))

    def _merged(self, text: str) -> Iterator[str]:
        neighbours, start = self._neighbours, 0
        for place, pair in enumerate(pairwise(text), 1):
            if pair not in neighbours:
                yield from self._word(text[start:place])
                start = place
        if text:
            yield from self._word(text[start:])

    def _word(self, word: str) -> list[str]:
        if len(word) == 1:
            return [word]
        pieces = self._words.get(word)
        if pieces is None:
            pieces = self._merge(word)
            if len(word) <= _LONGEST_KEPT:
                if len(self._words) >= _KEPT:
                    self._words.clear()
                self._words[word] = pieces
        return pieces

    def _merge(self, word: str) -> list[str]:
        """Repeatedly merge the adjacent pair with the best score, the leftmost one of ties."""
        pieces, end = list(word), len(word)
        before, behind = [*range(-1, end - 1)], [*range(1, end + 1)]
        waiting: list[tuple[float, int, int, int]] = []

        def consider(left: int, right: int) -> None:
            if left >= 0 and right < end:
                joined = pieces[left] + pieces[right]
                score = self._scores.get(joined)
                if score is not None:
                    heappush(waiting, (-score, left, right, len(joined)))

        for left, right in pairwise(range(end)):
            consider(left, right)
        while waiting:
            _, left, right, length = heappop(waiting)
            if not (pieces[left] and pieces[right]) or len(pieces[left]) + len(pieces[right]) != length:
                continue  # one of them has been merged with another
            pieces[left] += pieces[right]
            pieces[right] = ""
            behind[left] = behind[right]
            if behind[left] < end:
                before[behind[left]] = left
            consider(before[left], left)
            consider(left, behind[left])
        return [piece for piece in pieces if piece]


def _cut(text: NormalizedString, lengths: list[int]) -> Iterator[NormalizedString]:
    """Pieces of these lengths. The library seeks from the start of its text, so halves are cut first."""
    if len(lengths) <= 1:
        yield text
        return
    middle = len(lengths) // 2
    place = sum(lengths[:middle])
    first, rest = text[:place], text[place:]
    assert first is not None
    assert rest is not None
    yield from _cut(first, lengths[:middle])
    yield from _cut(rest, lengths[middle:])
