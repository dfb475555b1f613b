"""A grammar that begins behind a span: where it does, whatever is taken and taken back."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.grammar.after_reasoning import AfterReasoning
from engine.grammar.matcher import GrammarMatcher

VOCAB_SIZE = 64
BEGIN, END, EOS = 31, 32, 63


class InTurn:
    """Allows token 1, then 2, then 3, and then an end."""

    def __init__(self) -> None:
        self.taken = 0

    def accept(self, tokens) -> int:
        accepted = 0
        while accepted < len(tokens) and self.taken < 3 and tokens[accepted] == self.taken + 1:
            accepted += 1
            self.taken += 1
        return accepted

    def rollback(self, tokens: int) -> None:
        assert tokens <= self.taken
        self.taken -= tokens

    def fill_bitmask(self, words) -> None:
        bits = np.zeros(VOCAB_SIZE, dtype=np.uint8)
        bits[self.taken + 1 if self.taken < 3 else EOS] = 1
        words[:] = np.packbits(bits, bitorder="little").view(np.int32)


def matcher(begun: bool) -> AfterReasoning:
    return AfterReasoning(InTurn(), begin_id=BEGIN, end_id=END, begun=begun, eos_token_ids=(EOS,))


def allowed(by: GrammarMatcher) -> set[int]:
    words = np.zeros(VOCAB_SIZE // 32, dtype=np.int32)
    by.fill_bitmask(words)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


ANYTHING = set(range(VOCAB_SIZE)) - {EOS}


def test_in_a_span_all_goes_but_an_end_and_behind_it_what_the_grammar_says():
    after = matcher(begun=True)
    assert allowed(after) == ANYTHING
    assert after.accept([5, 1, BEGIN, 6, END, 1, 3]) == 6
    assert after.taken == 6
    assert allowed(after) == {2}


def test_a_span_may_begin_first_and_not_later():
    after = matcher(begun=False)
    assert allowed(after) == {1, BEGIN}
    assert after.accept([1, BEGIN]) == 1
    assert allowed(after) == {2}
    after.rollback(1)
    assert after.accept([BEGIN]) == 1
    assert allowed(after) == ANYTHING
    assert after.accept([END]) == 1
    assert allowed(after) == {1}
    assert after.accept([BEGIN]) == 0


@given(st.booleans(), st.lists(st.sampled_from([1, 2, 3, 7, BEGIN, END]), max_size=10), st.data())
def test_what_is_taken_back_was_never_taken(begun, tokens, data):
    moved, straight = matcher(begun), matcher(begun)
    taken = moved.accept(tokens)
    kept = data.draw(st.integers(0, taken))
    moved.rollback(taken - kept)
    assert straight.accept(tokens[:kept]) == kept
    assert moved.taken == straight.taken == kept
    assert allowed(moved) == allowed(straight)
    again = straight.accept(tokens[kept:])
    assert moved.accept(tokens[kept:]) == again == taken - kept
