"""Drafts leave the text unchanged: for any proposer, any number of drafts, and any other event of a request."""

from pathlib import Path

import pytest

from engine.speculation.policy import FixedDepth
from engine.speculation.speculator import Speculator
from tests.engine.execution.draft_cases import (
    TOGGLES,
    Adversary,
    Coin,
    Oracle,
    assert_same,
    mixed,
    model_of,
    proposer_of,
    usage_of,
    without,
)
from tests.engine.execution.harness import Harness, prompt


@pytest.mark.parametrize("depth", [1, 4, 8])
@pytest.mark.parametrize("kind", ["oracle", "nearly an oracle", "adversary", "ngram"])
def test_text_is_that_without(tiny_folders: dict[str, Path], kind: str, depth: int) -> None:
    folder = tiny_folders["llama"]
    expected = without(folder)
    harness = Harness(model_of(folder), speculator=Speculator([proposer_of(kind, expected)], FixedDepth(depth)))
    mixed(harness)
    given = harness.run()
    assert_same(dict(given), expected)
    drafts = sum(usage_of(generated).draft_tokens for generated in given.values())
    accepted = sum(usage_of(generated).accepted_draft_tokens for generated in given.values())
    assert drafts > 0
    if kind == "oracle":
        assert accepted == drafts
    elif kind == "adversary":
        assert accepted < drafts / 10
    else:
        assert 0 < accepted < drafts


@pytest.mark.parametrize("toggle", TOGGLES)
@pytest.mark.parametrize("kind", ["toggled oracle", "nearly an oracle", "adversary"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_text_is_unchanged_in_each_mode(tiny_folders: dict[str, Path], family: str, kind: str, toggle: str) -> None:
    folder = tiny_folders[family]
    expected = without(folder)
    speculator = Speculator([proposer_of(kind, expected)], FixedDepth(8))
    harness = Harness(model_of(folder), speculator=speculator, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    given = harness.run(preempt_every=3 if toggle == "preempted" else None)
    assert harness.scheduler.stats().cached_tokens_total > 0
    if toggle == "preempted":
        assert harness.scheduler.stats().preemptions_total > 0
    assert_same(dict(given), expected)


def test_an_oracle_saves_steps(tiny_folders: dict[str, Path]) -> None:
    folder = tiny_folders["llama"]
    alone = Harness(model_of(folder))
    alone.add(prompt(20), max_tokens=37)
    expected = dict(alone.run())
    drafted = Harness(model_of(folder), speculator=Speculator([proposer_of("oracle", expected)], FixedDepth(8)))
    drafted.add(prompt(20), max_tokens=37)
    assert drafted.run()["0"].tokens == expected["0"].tokens
    assert alone.scheduler.stats().steps_total == 37
    assert drafted.scheduler.stats().steps_total == 1 + 36 // 9  # one token with the prompt, then nine a step
    assert usage_of(drafted.results["0"]).accepted_draft_tokens == 32


def test_what_is_drafted_never_goes_past_the_length(tiny_folders: dict[str, Path]) -> None:
    folder = tiny_folders["llama"]
    for max_tokens in (1, 2, 3, 9):
        harness = Harness(model_of(folder), speculator=Speculator([Adversary()], FixedDepth(8)))
        harness.add(prompt(20), max_tokens=max_tokens)
        generated = harness.run()["0"]
        assert len(generated.tokens) == max_tokens
        assert usage_of(generated).draft_tokens <= sum(range(max_tokens - 1))


def test_hidden_states_are_those_that_the_last_tokens_were_drawn_from(tiny_folders: dict[str, Path]) -> None:
    """Whether a token was drawn behind a draft or in a step of its own."""
    folder = tiny_folders["llama"]
    expected = without(folder)
    speculator = Speculator([Coin(Oracle({"0": expected["0"].tokens}, wrong_every=4))], FixedDepth(4))
    harness = Harness(model_of(folder), speculator=speculator)
    states = harness.runner.keep_hidden_states()  # type: ignore[attr-defined]
    request = harness.add(prompt(1), max_tokens=20, seed=0)
    seen = 0
    while harness.step():
        if request.slot is None or not request.output_tokens:
            continue
        assert states.has(request)
        logits = model_of(folder).logits(states.of([request]))
        assert int(logits.argmax()) == request.tokens[-1]
        seen += 1
    assert seen > 4
    assert not states.has(request)
