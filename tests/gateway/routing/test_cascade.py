"""How sure a model was of its answer."""

from math import log

import pytest

from engine.request import FinishReason, TextDelta, TokenLogprob
from gateway.routing.cascade import confidence, is_good_enough


def answer(*probabilities: float, end: FinishReason = FinishReason.STOP) -> list[TextDelta]:
    """A delta for each two tokens."""
    entries = [TokenLogprob(1, log(each), ()) for each in probabilities]
    deltas = [TextDelta(0, logprobs=tuple(entries[i : i + 2])) for i in range(0, len(entries), 2)]
    return [*deltas, TextDelta(0, finish_reason=end)]


def test_confidence_is_the_geometric_mean_over_all_deltas() -> None:
    assert confidence(answer(0.5, 0.5, 0.125)) == pytest.approx((0.5 * 0.5 * 0.125) ** (1 / 3))
    assert confidence(answer(1.0)) == 1.0


def test_an_answer_of_nothing_is_nothing_to_be_sure_of() -> None:
    assert confidence(answer()) == 0.0


def test_the_least_sure_choice_decides() -> None:
    assert is_good_enough([answer(0.9), answer(0.8, 0.8)], 79, shortened=False)
    assert not is_good_enough([answer(0.9), answer(0.8, 0.8)], 81, shortened=False)


@pytest.mark.parametrize(("shortened", "good"), [(True, False), (False, True)])
def test_an_answer_that_the_trial_cut_short_is_none(shortened: bool, good: bool) -> None:
    """One that the client's own bound ended is whole."""
    assert is_good_enough([answer(0.9, end=FinishReason.LENGTH)], 50, shortened=shortened) == good
    assert is_good_enough([answer(0.9)], 50, shortened=shortened)
