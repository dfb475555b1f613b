"""Drafts, preemptions and grammars together: the text is the same, and a grammar that fails is its request's affair."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from engine.execution.masks import TokenMasks
from engine.execution.sampler import Draw
from engine.grammar.compiler import GrammarCompiler
from engine.grammar.matcher import Bitmask
from engine.models.host_model import HostModel
from engine.request import FinishReason
from engine.speculation.policy import FixedDepth
from engine.speculation.speculator import Speculator
from engine.text.tokenizer import Tokenizer
from tests.engine.execution.draft_cases import assert_same, proposer_of
from tests.engine.execution.harness import Generated, Harness, load_tiny
from tests.engine.grammar.constrained import GRAMMARS, GREEDY, Failing, run
from tests.support.tiny_tokenizer import IM_END, VOCAB_SIZE


@cache
def model_of(folder: Path) -> HostModel:
    return load_tiny(folder)


@pytest.fixture(scope="module")
def expected(tiny_folders: dict[str, Path], compiler: GrammarCompiler) -> dict[str, Generated]:
    return run(Harness(model_of(tiny_folders["llama"])), compiler)


def test_without_drafts_answers_end_with_their_grammar(expected: Mapping[str, Generated], tokenizer: Tokenizer) -> None:
    for index, generated in enumerate(expected.values()):
        if GRAMMARS[index % len(GRAMMARS)] is not None:
            assert generated.deltas[-1].stop_token == IM_END
            assert tokenizer.decode(generated.tokens)


@pytest.mark.parametrize("preempt_every", [None, 3])
@pytest.mark.parametrize("kind", ["oracle", "nearly an oracle", "toggled oracle", "adversary", "ngram"])
def test_text_is_that_without_drafts(
    tiny_folders: dict[str, Path],
    compiler: GrammarCompiler,
    expected: dict[str, Generated],
    kind: str,
    preempt_every: int | None,
) -> None:
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(4))
    harness = Harness(model_of(tiny_folders["llama"]), speculator=speculator)
    assert_same(run(harness, compiler, preempt_every), expected)


def test_text_is_unchanged_by_preemptions(
    tiny_folders: dict[str, Path], compiler: GrammarCompiler, expected: dict[str, Generated]
) -> None:
    assert_same(run(Harness(model_of(tiny_folders["llama"])), compiler, preempt_every=2), expected)


def test_a_grammar_that_fails_ends_its_request_alone(
    tiny_folders: dict[str, Path], compiler: GrammarCompiler, expected: dict[str, Generated]
) -> None:
    harness = Harness(model_of(tiny_folders["llama"]))
    failing = harness.add(range(50, 70), GREEDY, max_tokens=60, eos=())
    failing.matcher = Failing(after=5)
    given = list(run(harness, compiler).values())
    last = given[0].deltas[-1]
    assert (last.finish_reason, last.error) == (FinishReason.ERROR, "the grammar cannot be followed any further")
    assert len(given[0].tokens) == 5
    assert [each.tokens for each in given[1:]] == [each.tokens for each in expected.values()]


class Even:
    """Allows the even tokens, and counts what it is asked."""

    def __init__(self) -> None:
        self.taken = self.asked = 0

    def accept(self, tokens: Sequence[int]) -> int:
        legal = next((i for i, token in enumerate(tokens) if token % 2), len(tokens))
        self.taken += legal
        return legal

    def rollback(self, tokens: int) -> None:
        self.taken -= tokens

    def fill_bitmask(self, words: Bitmask) -> None:
        self.asked += 1
        words.fill(0x55555555)


def test_masks_follow_drafts_as_far_as_they_are_legal(tiny_folders: dict[str, Path]) -> None:
    model = model_of(tiny_folders["llama"])
    harness = Harness(model)
    request, plain = (harness.add(range(20, 30), GREEDY, eos=(8,)) for _ in range(2))
    request.matcher = even = Even()
    request.tokens += [4, 6]
    drafts = (2, 4, 7, 2)
    draws = [Draw(plain), *(Draw(request, drafts[:taken]) for taken in range(5)), Draw(plain)]
    logits = np.zeros((7, VOCAB_SIZE), dtype=np.float32)
    assert TokenMasks(model.ops, VOCAB_SIZE).apply(logits, draws) == frozenset()
    forbidden = np.isneginf(logits)
    assert forbidden[1:4, 1::2].all()
    assert not forbidden[1:4, 0::2].any()
    assert not forbidden[[0, 4, 5, 6]].any()
    assert (even.taken, even.asked) == (2, 3)
    ending = [Draw(request, drafts) for drafts in ((), (8,), (8, 2))]
    assert TokenMasks(model.ops, VOCAB_SIZE).apply(logits[:3], ending) == frozenset()
    assert (even.taken, even.asked) == (2, 4)
