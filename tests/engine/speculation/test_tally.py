"""Counts of drafts, as metrics show them."""

import pytest

from engine.scheduling.cost import StepWork
from engine.speculation.policy import Drafting, SpeculationLoad, StepOutcome, Verified
from engine.speculation.tally import DraftTally

CLASSES = ("premium", "standard")


def outcome(*verified: Verified, drafting: tuple[Drafting, ...] = ()) -> StepOutcome:
    work = StepWork(4 + sum(each.drafts for each in verified), 100, 0, 4)
    return StepOutcome(SpeculationLoad(4, 0, 100), work, drafting, verified, 1000)


def test_drafts_are_counted_by_proposer_and_class() -> None:
    tally = DraftTally()
    tally.observe(outcome(Verified("ngram", 0, 4, 3), Verified("ngram", 0, 2, 0), Verified("draft", 1, 5, 5)))
    tally.observe(outcome(Verified("ngram", 1, 1, 1)))
    counts = {(each.proposer, each.service_class): each for each in tally.stats(CLASSES, 7).drafts}
    totals = {key: (each.proposed_total, each.accepted_total) for key, each in counts.items()}
    assert totals == {("ngram", "premium"): (6, 3), ("draft", "standard"): (5, 5), ("ngram", "standard"): (1, 1)}
    assert counts["ngram", "premium"].acceptance == pytest.approx(0.5, abs=0.01)
    assert tally.stats(CLASSES, 7).saved_ns == 7


def test_depth_is_that_of_the_deepest_row_and_goes_to_nothing_without_drafts() -> None:
    tally = DraftTally()
    for _ in range(1000):
        tally.observe(outcome(Verified("draft", 0, 4, 1), Verified("draft", 0, 2, 1)))
    assert tally.stats(CLASSES, 0).drafts[0].depth == pytest.approx(4.0, abs=0.01)
    for _ in range(1000):
        tally.observe(outcome())
    assert tally.stats(CLASSES, 0).drafts[0].depth == pytest.approx(0.0, abs=0.01)


def test_drafting_counts_whatever_came_of_it() -> None:
    tally = DraftTally()
    for _ in range(3):
        tally.observe(outcome(drafting=(Drafting("draft", 0, 0, 64, 0, 500),)))
    stats = tally.stats(CLASSES, 0)
    assert stats.drafting_ns == {"draft": 1500}
    assert stats.drafts == ()


def test_what_was_read_does_not_change() -> None:
    """Another thread reads while the engine's counts."""
    tally = DraftTally()
    tally.observe(outcome(Verified("draft", 0, 4, 1), drafting=(Drafting("draft", 1, 4, 1, 4, 500),)))
    before = tally.stats(CLASSES, 0)
    tally.observe(outcome(Verified("ngram", 1, 4, 1), drafting=(Drafting("draft", 1, 4, 1, 4, 500),)))
    assert before.drafting_ns == {"draft": 500}
    assert [each.proposer for each in before.drafts] == ["draft"]
