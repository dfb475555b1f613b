"""N-gram drafts: the tokens that followed the last occurrence are proposed again."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.request import Request
from engine.simulation import make_request
from engine.speculation.ngram import CANDIDATES, LONGEST_MATCH, NgramProposer
from engine.speculation.proposer import DraftWant


def running(tokens: list[int], slot: int = 0) -> Request:
    request = make_request("r", tokens)
    request.slot = slot
    return request


def guess(tokens: list[int], depth: int = 4) -> list[int]:
    (drafts,) = NgramProposer(1).propose([DraftWant(running(tokens), depth)])
    return list(drafts)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1], []),
        ([1, 2, 3], []),
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),
        ([1, 9, 3, 4, 2, 9], []),  # one token in common says nothing
        ([7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], [3, 8, 1, 2]),  # three in common, though two were later
        ([1, 2, 3, 0, 1, 2, 4, 0, 9, 1, 2], [4, 0, 9, 1]),  # of equals the latest
        ([5, 6, 5, 6], [5, 6, 5, 6]),  # a cycle continues
        ([8, 8, 8], [8, 8, 8, 8]),
    ],
)
def test_what_followed_the_longest_match_is_proposed(tokens: list[int], expected: list[int]) -> None:
    assert guess(tokens) == expected


def looked_up(tokens: list[int], depth: int) -> list[int]:
    """The same, by looking at every place."""
    last = len(tokens) - 1
    ends = [end for end in range(1, last) if tokens[end - 1 : end + 1] == tokens[-2:]][-CANDIDATES:]

    def agreement(end: int) -> int:
        length = 2
        while length < LONGEST_MATCH and length <= end and tokens[end - length] == tokens[last - length]:
            length += 1
        return length

    if not ends:
        return []
    best = max(ends, key=lambda end: (agreement(end), end))
    known = list(tokens)
    return [known.append(known[best + 1 + at]) or known[-1] for at in range(depth)]  # type: ignore[func-returns-value]


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=120),
    cuts=st.lists(st.integers(1, 120), max_size=5),
    depth=st.integers(1, 9),
)
def test_an_incremental_index_finds_what_a_search_finds(tokens: list[int], cuts: list[int], depth: int) -> None:
    proposer, request = NgramProposer(1), running(tokens[:1])
    for end in [*sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]:
        request.tokens[:] = tokens[:end]
        (drafts,) = proposer.propose([DraftWant(request, depth)])
        assert list(drafts) == looked_up(tokens[:end], depth)


def test_a_slot_that_changes_hands_forgets() -> None:
    proposer = NgramProposer(2)
    first, second = running([1, 2, 3, 4, 1, 2]), running([1, 2, 9, 9, 1, 2], slot=1)
    wants = [DraftWant(first, 1), DraftWant(second, 1)]
    assert proposer.propose(wants) == [[3], [9]]
    first.slot, second.slot = 1, 0
    assert proposer.propose(wants) == [[3], [9]]


def test_a_request_that_repeats_one_pair_is_not_searched_to_its_start() -> None:
    rng = Random(0)
    filler = [token for _ in range(CANDIDATES + 5) for token in (1, 2, 10 + rng.randrange(50))]
    assert guess([6, 7, 1, 2, 5, *filler, 6, 7, 1, 2], 1) == filler[-1:]
