"""A fit to samples whose law is known."""

import random

import pytest

from gateway.routing.fitting.fit import RECOVERED, NothingToRoute, Sample, fit, judge
from gateway.routing.fitting.pareto import Graded
from gateway.routing.fitting.report import describe
from gateway.routing.question import Question
from gateway.tenancy.policies import Preference

EASY = ["greet", "name", "say", "colour", "day", "hello", "thank", "wish"]
HARD = ["prove", "derive", "integral", "theorem", "matrix", "compile", "refactor", "optimise"]


WON = Graded(False, True, 1.0)


def samples(count: int, seed: int = 1) -> list[Sample]:
    """The large model is right on everything, the small one on what is easy, one time in ten the other way about."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        hard = rng.random() < 0.5
        text = " ".join(rng.choices(HARD if hard else EASY, k=4)) + f" {rng.randrange(10**6)}"
        small = hard if rng.random() < 0.1 else not hard
        made.append(Sample(Question(text=text), Graded(small, True, 1.0), "hard" if hard else "easy"))
    return made


def test_it_finds_what_the_small_model_cannot() -> None:
    drawn = samples(600)
    fitted = fit(drawn)
    score, report = fitted.score, judge(fitted.score, drawn)
    assert score.of(Question(text="Prove derive integral theorem 400000")) > score.thresholds[Preference.BALANCED]
    assert score.of(Question(text="greet hello say thank 400000")) < score.thresholds[Preference.BALANCED]
    assert report.routed.apgr > 0.65
    assert report.routed.shares_below_random == ()
    assert fitted.seen + report.unseen == 600


def test_the_same_samples_give_the_same_weights() -> None:
    assert fit(samples(300)).score.to_json() == fit(samples(300)).score.to_json()


def test_what_is_reported_was_never_seen() -> None:
    """The unseen half alone decides the report, the seen half alone the weights."""
    drawn = samples(600)
    swapped = [
        sample if sample.seen else Sample(sample.question, Graded(False, sample.graded.large, 2.0)) for sample in drawn
    ]
    score = fit(drawn).score
    assert score.to_json() == fit(swapped).score.to_json()
    assert judge(score, drawn).routed.small > judge(score, swapped).routed.small == 0.0


def test_a_preference_recovers_about_the_part_it_is_for() -> None:
    drawn = samples(2000)
    report = judge(fit(drawn).score, drawn)
    for preference, choice in report.choices.items():
        assert choice.recovered == pytest.approx(RECOVERED[preference], abs=0.1)
    shares = [report.choices[each].share for each in (Preference.ECONOMY, Preference.BALANCED, Preference.QUALITY)]
    assert shares == sorted(shares)


def test_the_halves_and_folds_are_the_text_s_own() -> None:
    drawn = samples(1000)
    assert 400 < sum(sample.seen for sample in drawn) < 600
    assert {sample.fold for sample in drawn if sample.seen} == {0, 1, 2, 3, 4}
    assert (
        Sample(Question(text="a", turns=3), Graded(True, True, 9.0)).seen
        == Sample(Question(text="a"), Graded(False, True, 1.0)).seen
    )


def test_one_score_learns_from_two_pairs_that_differ() -> None:
    """The other pair's large model wins on questions of which the first pair was asked none."""
    mine, rng = samples(600), random.Random(2)
    foreign = [
        Sample(Question(text=" ".join(rng.choices(["sum", "add", "half", "times"], k=4)) + f" {number}"), WON)
        for number in range(100_000, 100_300)
    ]
    fitted = fit(mine, foreign)
    assert fitted.seen == sum(sample.seen for sample in (*mine, *foreign))
    assert judge(fitted.score, mine).routed.apgr > 0.65
    assert fitted.score.of(Question(text="add times half sum 400000")) > 0.8


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(NothingToRoute, match="at least"):
        fit(samples(20))


def test_a_large_model_that_does_not_win_is_refused() -> None:
    equal = [Sample(sample.question, Graded(True, True, 1.0)) for sample in samples(300)]
    with pytest.raises(NothingToRoute, match="nothing to win"):
        fit(equal)


def test_the_report_names_both_models_figures_and_every_preference() -> None:
    drawn = samples(300)
    fitted = fit(drawn)
    report = judge(fitted.score, drawn)
    text = describe(fitted, report, "tokens")
    for preference in Preference:
        assert f"| {preference} |" in text
    assert f"APGR {report.routed.apgr:.3f}" in text
    assert "the large one on 100.0%" in text
