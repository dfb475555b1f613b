"""Fits the complexity score to a pair of models, and says how good it is on questions that the fit never saw.

A hash of its text puts a question on the one side or the other: `seen` or not. Everything is chosen on the seen side,
by cross-validation: the penalty as the one with the best APGR, and each preference's threshold as the highest score
that recovers its part of the gap between the models. The report is of the other side alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gateway.errors import OperatorError
from gateway.routing.curve import Curve, Graded, above, curve, oracle
from gateway.routing.policy import Preference
from gateway.routing.question import Question
from gateway.routing.score import ComplexityScore
from gateway.routing.training import design, fit_head

RECOVERED: Mapping[Preference, float] = MappingProxyType(
    {Preference.QUALITY: 0.95, Preference.BALANCED: 0.8, Preference.ECONOMY: 0.5}
)
"""How much of what the large model wins over the small one a preference asks for."""
MIN_SAMPLES = 100
_PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
_FOLDS = 5
_SALT = "turnpike routing"


class NothingToRoute(OperatorError):
    """From these samples no score can be learnt."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A question, and how the pair did on it."""

    question: Question
    graded: Graded
    family: str = ""

    @property
    def seen(self) -> bool:
        return _hash(self.question.text) % 2 == 0

    @property
    def fold(self) -> int:
        return _hash(self.question.text) // 2 % _FOLDS


@dataclass(frozen=True, slots=True)
class Choice:
    """What a preference does on the questions that were not seen."""

    threshold: float
    share: float
    """Of the cost, that goes to the large model."""
    right: float
    """Of the questions, that are answered rightly."""
    recovered: float
    """Of the gap between the models."""


@dataclass(frozen=True, slots=True)
class Report:
    """On `unseen` questions; `seen` of them were learnt from."""

    seen: int
    unseen: int
    penalty: float
    routed: Curve
    oracle: Curve
    choices: Mapping[Preference, Choice]


def fit(samples: Sequence[Sample]) -> tuple[ComplexityScore, Report]:
    """The score, and how good it is.

    Raises:
        NothingToRoute: too few samples, or the large model does not win on them.
    """
    seen, unseen = [each for each in samples if each.seen], [each for each in samples if not each.seen]
    if min(len(seen), len(unseen)) < MIN_SAMPLES / 2:
        raise NothingToRoute(f"a fit needs at least {MIN_SAMPLES} questions with different texts")
    for half in (seen, unseen):
        if sum(each.graded.gain for each in half) <= 0:
            raise NothingToRoute("the large model is right no more often than the small one: there is nothing to win")
    graded = [each.graded for each in seen]
    by_penalty = {penalty: _cross_validated(seen, penalty) for penalty in _PENALTIES}
    penalty = max(_PENALTIES, key=lambda each: curve(by_penalty[each], graded).apgr)
    scores = by_penalty[penalty]
    thresholds = {preference: _threshold(scores, graded, part) for preference, part in RECOVERED.items()}
    score = ComplexityScore.from_json(_fitted(seen, penalty, thresholds).to_json())  # as it will be read
    return score, _report(score, len(seen), unseen, penalty)


def _fitted(samples: Sequence[Sample], penalty: float, thresholds: Mapping[Preference, float]) -> ComplexityScore:
    given = design([each.question for each in samples])
    small = fit_head(given, [each.graded.small for each in samples], penalty)
    large = fit_head(given, [each.graded.large for each in samples], penalty)
    return ComplexityScore(small, large, given.ranges, thresholds)


def _cross_validated(samples: Sequence[Sample], penalty: float) -> list[float]:
    """Each sample's score by a fit to the other folds."""
    scores = [0.0] * len(samples)
    for fold in range(_FOLDS):
        score = _fitted([each for each in samples if each.fold != fold], penalty, {})
        for index, each in enumerate(samples):
            if each.fold == fold:
                scores[index] = score.of(each.question)
    return scores


def _threshold(scores: Sequence[float], graded: Sequence[Graded], part: float) -> float:
    """The highest score from which on the large model's answers recover this part of the gap."""
    whole = curve(scores, graded)
    wanted = whole.small + part * (whole.large - whole.small)
    falling = sorted(set(scores), reverse=True)  # one for each point of the curve behind its first
    return next((score for score, right in zip(falling, whole.right[1:], strict=True) if right >= wanted), 0.0)


def _report(score: ComplexityScore, seen: int, unseen: Sequence[Sample], penalty: float) -> Report:
    scores, graded = [score.of(each.question) for each in unseen], [each.graded for each in unseen]
    routed = curve(scores, graded)
    choices = {}
    for preference, threshold in score.thresholds.items():
        share, right = above(threshold, scores, graded)
        choices[preference] = Choice(threshold, share, right, routed.recovered(right))
    return Report(seen, len(unseen), penalty, routed, oracle(graded), MappingProxyType(choices))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{_SALT}:{text}".encode()).digest()[:8])
