"""Masks the logits of tokens that a grammar does not allow."""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from engine.grammar.matcher import GrammarFailed, GrammarMatcher
from engine.request import Request
from kernels.arrays import Floats
from kernels.host import HostOps

if TYPE_CHECKING:
    from engine.execution.sampler import Draw

Mask = Callable[[int, GrammarMatcher], None]
"""Called with the index of a draw, and its matcher after the tokens and drafts that precede it."""


class TokenMasks:
    """Masks the logits of draws whose requests have a grammar. One bitmask buffer serves all of them."""

    def __init__(self, ops: HostOps, vocab_size: int) -> None:
        self._ops = ops
        self._words = np.zeros(bitmask_words(vocab_size), dtype=np.int32)
        self._bitmask = self._words[None]

    def apply(self, logits: Floats, draws: "Sequence[Draw]") -> frozenset[int]:
        """Set logits float32 [R, V] to -inf where a grammar forbids the token. Returns the rows of requests whose
        grammar failed; their draws are to be discarded.

        The draws of one request are adjacent, each with one draft more than the one before it.
        """

        def mask(row: int, matcher: GrammarMatcher) -> None:
            matcher.fill_bitmask(self._words)
            self._ops.mask_logits(logits[row : row + 1], self._bitmask)

        return follow_grammars(draws, mask)


def bitmask_words(vocab_size: int) -> int:
    """int32 words of a bitmask."""
    return -(-vocab_size // 32)


def follow_grammars(draws: "Sequence[Draw]", mask: Mask) -> frozenset[int]:
    """Call `mask` for each draw that a grammar constrains. Returns the draws of requests whose grammar failed.

    The draws of one request are adjacent, each with one draft more than the one before it.
    """
    failed: set[int] = set()
    for request, group in groupby(enumerate(draws), key=lambda indexed: indexed[1].request):
        matcher = request.matcher
        if matcher is None:
            continue
        rows = list(group)
        try:
            _follow(request, matcher, rows, mask)
        except GrammarFailed:
            failed.update(row for row, _ in rows)
    return frozenset(failed)


def _follow(request: Request, matcher: GrammarMatcher, rows: "Iterable[tuple[int, Draw]]", mask: Mask) -> None:
    """Mask the draws of one request. Those after a draft that is an end token or that the grammar rejects stay
    unmasked: that draft is rejected or ends the answer, so later draws are never used."""
    _catch_up(matcher, request)
    ahead = 0
    try:
        for row, (_, drafts) in rows:
            if drafts:
                if drafts[-1] in request.eos_token_ids or not matcher.accept(drafts[-1:]):
                    return
                ahead += 1
            mask(row, matcher)
    finally:
        matcher.rollback(ahead)


def _catch_up(matcher: GrammarMatcher, request: Request) -> None:
    """Advance the matcher over all tokens generated so far."""
    news = request.tokens[request.prompt_tokens + matcher.taken :]
    if matcher.accept(news) < len(news):
        raise GrammarFailed("the answer has a token that its grammar does not allow")
