"""Ids of SentencePiece vocabularies whose scores are tied are llama.cpp's: of equal scores the leftmost goes first."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.checkpoints.gguf.tokenizer import build_tokenizer
from engine.checkpoints.gguf.vocabulary import read_vocabulary
from engine.text.leftmost_merges import LeftmostMerges
from engine.text.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def metadata_of(tokens: list[str], scores: list[float]) -> dict[str, Any]:
    """A vocabulary of these ordinary tokens, behind what every one has."""
    every = ["<unk>", "<s>", "</s>", *BYTES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": every + tokens,
        "tokenizer.ggml.scores": [0.0] * len(every) + scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(tokens),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


def tokenizer_of(tokens: list[str], scores: list[float]) -> Tokenizer:
    return build_tokenizer(read_vocabulary(metadata_of(tokens, scores)))


def by_llamacpps_rule(text: str, tokens: list[str], scores: list[float]) -> list[str]:
    """Merge the pair of the best score, the leftmost of equals, until there is none; bytes of what is no token."""
    score_of = {token: score for token, score in zip(tokens, scores, strict=True) if len(token) > 1}
    pieces = list(text.replace(" ", "▁"))
    while True:
        joined = [left + right for left, right in pairwise(pieces)]
        places = [place for place, each in enumerate(joined) if each in score_of]
        if not places:
            break
        place = min(places, key=lambda place: (-score_of[joined[place]], place))
        pieces[place : place + 2] = [joined[place]]
    ids = {piece: [piece] if piece in tokens else [f"<0x{byte:02X}>" for byte in piece.encode()] for piece in pieces}
    return [token for piece in pieces for token in ids[piece]]


def told(tokenizer: Tokenizer, tokens: list[str], text: str) -> list[str]:
    names = ["<unk>", "<s>", "</s>", *BYTES, *tokens]
    return [names[token_id] for token_id in tokenizer.encode(text, add_special_tokens=False)]


def test_equal_scores_merge_from_the_left() -> None:
    tokens = ["a", "b", "▁", "aaba", "ab", "ab▁", "ba", "ba▁", "b▁a", "▁a", "▁b", "▁ba"]
    tokenizer = tokenizer_of(tokens, [-1000.0] * len(tokens))
    assert told(tokenizer, tokens, "ba  bbbbabb") == ["ba▁", "▁b", "b", "b", "ba", "b", "b"]


@st.composite
def vocabularies(draw: st.DrawFn) -> tuple[list[str], list[float]]:
    """With few scores, so that some or all are tied; characters that no token has are typed, too."""
    longer = draw(st.lists(st.text("ab▁c", min_size=2, max_size=5), min_size=2, max_size=25, unique=True))
    tokens = [*"ab▁", *longer]
    scores = draw(st.lists(st.sampled_from([-1.0, -2.0, -1000.0]), min_size=len(tokens), max_size=len(tokens)))
    return tokens, scores


@settings(max_examples=300, deadline=None)
@given(vocabulary=vocabularies(), text=st.text("aaabbb  ▁cü\n", max_size=40))
def test_ids_are_those_of_the_rule(vocabulary: tuple[list[str], list[float]], text: str) -> None:
    tokens, scores = vocabulary
    merges = {token: score for token, score in zip(tokens, scores, strict=True) if len(token) > 1}
    pieces = LeftmostMerges(merges, frozenset(token for token in tokens if len(token) == 1)).pieces(text)
    assert "".join(pieces) == text
    if len(set(merges.values())) == len(merges):
        return  # the library's merging
    assert told(tokenizer_of(tokens, scores), tokens, text) == by_llamacpps_rule(text, tokens, scores)


def test_special_tokens_and_decoding_are_as_ever() -> None:
    tokens = [*"ab▁", "ab", "▁a"]
    tokenizer = tokenizer_of(tokens, [-1000.0] * len(tokens))
    ids = tokenizer.encode_template("<s>ab a</s> ab")
    assert ids[0] == 1
    assert 2 in ids
    assert tokenizer.decode(ids) == "ab a ab"
    typed = tokenizer.encode("<s>ab", add_special_tokens=False)
    assert tokenizer.special_ids.isdisjoint(typed)
    assert tokenizer.decode(typed) == "<s>ab"
    assert tokenizer.encode("ab\ud800", add_special_tokens=False)


@settings(max_examples=30, deadline=None)
@given(text=st.text("ab  c日", max_size=60))
def test_how_many_tokens_there_are_at_least_is_known(text: str) -> None:
    tokens = [*"ab▁", "ab", "ba", "aab"]
    tokenizer = tokenizer_of(tokens, [-1000.0] * len(tokens))
    assert tokenizer.least_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.least_tokens("ab" * 100) > 50


def test_tokenizers_share_memory_only_where_their_ties_are_the_same() -> None:
    tokens = [*"ab▁", "ab", "ba"]
    tied, again, other = (
        tokenizer_of(tokens, [-9.0, -9.0, -9.0, *scores]) for scores in ([-1.0, -1.0], [-1.0, -1.0], [-2.0, -2.0])
    )
    assert (shared := tied.sharing(again)) is not None
    assert shared.shares_with(again)
    assert tied.sharing(other) is None
    assert tied.to_json()


@pytest.mark.parametrize("length", [1000, 4000])
def test_a_merge_costs_no_more_than_its_logarithm(length: int) -> None:
    """Scores looked up, of a text in which every place can be merged: at most three for each character."""
    looked_up = 0

    class Counted(dict[str, float]):
        def get(self, key: str, default: Any = None) -> Any:
            nonlocal looked_up
            looked_up += 1
            return super().get(key, default)

    merges = LeftmostMerges({"a" * count: -1.0 for count in (2, 3, 4, 8)}, frozenset("a"))
    merges._scores = Counted(merges._scores)
    assert "".join(merges.pieces("a" * length)) == "a" * length
    assert looked_up <= 3 * length
