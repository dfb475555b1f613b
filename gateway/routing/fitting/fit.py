"""Fits the complexity score to a pair of models, and reports its quality on questions that the fit never saw.

A hash of a question's text puts it into the training half (`seen`) or the test half. All choices are made on the
training half by cross-validation: the penalty has the best APGR, and each preference's threshold is the highest score
that recovers its part of the gap between the models. A report uses the test half alone.

The large model's gain depends on the pair: weights of one pair may be worse than random for another. A score for pairs
without a fit of their own is therefore trained on several pairs at once.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from gateway.errors import OperatorError
from gateway.routing.features import Reading, read
from gateway.routing.fitting.pareto import Curve, Graded, at_threshold, curve, oracle
from gateway.routing.fitting.training import design, fit_heads
from gateway.routing.question import Question
from gateway.routing.score import ComplexityScore
from gateway.tenancy.policies import Preference

RECOVERED: Mapping[Preference, float] = MappingProxyType(
    {Preference.QUALITY: 0.95, Preference.BALANCED: 0.8, Preference.ECONOMY: 0.5}
)
"""For each preference, the part of the large model's gain over the small one to be recovered."""
MIN_SAMPLES = 100
_PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0)
_FOLDS = 5
_SALT = "turnpike routing"


class NothingToRoute(OperatorError):
    """The samples do not allow a fit: there are too few, or the large model does not win."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A question and the pair's result on it. `family`: kind of task."""

    question: Question
    graded: Graded
    family: str = ""

    @property
    def seen(self) -> bool:
        """Whether the sample is in the training half."""
        return _hash(self.question.text) % 2 == 0

    @property
    def fold(self) -> int:
        """Cross-validation fold, from 0."""
        return _hash(self.question.text) // 2 % _FOLDS


@dataclass(frozen=True, slots=True)
class _ReadSample:
    """A sample and its features, which are read once."""

    sample: Sample
    reading: Reading


@dataclass(frozen=True, slots=True)
class PreferenceResult:
    """Result of a preference's threshold on the test half."""

    threshold: float
    share: float
    """The large model's share of the cost."""
    right: float
    """The share of questions answered correctly."""
    recovered: float
    """The part of the gap between the models that is recovered."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Quality of a score on the test half. `unseen`: number of questions in it."""

    unseen: int
    routed: Curve
    oracle: Curve
    choices: Mapping[Preference, PreferenceResult]


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted score. `seen`: number of training questions. `penalty`: chosen weight of the L2 penalty."""

    score: ComplexityScore
    seen: int
    penalty: float


def fit(samples: Sequence[Sample], *others: Sequence[Sample]) -> Fit:
    """Fit a score to the training half of `samples` and of `others`, which are samples of other pairs of models. The
    penalty has the best mean APGR over all sets; the thresholds are those of `samples`.

    Raises:
        NothingToRoute: too few samples, or the large model does not win on them.
    """
    sets = [_halves(of_pair)[0] for of_pair in (samples, *others)]
    together = [_ReadSample(sample, read(sample.question)) for of_pair in sets for sample in of_pair]
    by_penalty = _cross_validate(together)
    penalty = max(_PENALTIES, key=lambda candidate: _apgr(by_penalty[candidate], sets))
    graded = [sample.graded for sample in sets[0]]
    scores = by_penalty[penalty][: len(graded)]
    thresholds = {preference: _threshold(scores, graded, part) for preference, part in RECOVERED.items()}
    (score,) = _fit_scores(together, [penalty], thresholds)
    return Fit(ComplexityScore.from_json(score.to_json()), len(together), penalty)  # rounded as in the file


def judge(score: ComplexityScore, samples: Sequence[Sample]) -> FitReport:
    """Report the quality of a score on the test half of `samples`.

    Raises:
        NothingToRoute: too few samples, or the large model does not win on them.
    """
    unseen = _halves(samples)[1]
    scores, graded = [score.of(sample.question) for sample in unseen], [sample.graded for sample in unseen]
    routed = curve(scores, graded)
    choices = {}
    for preference, threshold in score.thresholds.items():
        share, right = at_threshold(threshold, scores, graded)
        choices[preference] = PreferenceResult(threshold, share, right, routed.recovered(right))
    return FitReport(len(unseen), routed, oracle(graded), MappingProxyType(choices))


def _halves(samples: Sequence[Sample]) -> tuple[list[Sample], list[Sample]]:
    """The training half and the test half. Raises NothingToRoute."""
    halves = [sample for sample in samples if sample.seen], [sample for sample in samples if not sample.seen]
    if min(map(len, halves)) < MIN_SAMPLES / 2:
        raise NothingToRoute(f"a fit needs at least {MIN_SAMPLES} questions with different texts")
    if min(sum(sample.graded.gain for sample in half) for half in halves) <= 0:
        raise NothingToRoute("the large model is right no more often than the small one: there is nothing to win")
    return halves


def _fit_scores(
    samples: Sequence[_ReadSample], penalties: Sequence[float], thresholds: Mapping[Preference, float]
) -> Iterator[ComplexityScore]:
    """One for each penalty."""
    given = design([row.reading for row in samples])
    right = [(row.sample.graded.small, row.sample.graded.large) for row in samples]
    for penalty in penalties:
        small, large = fit_heads(given, right, penalty)
        yield ComplexityScore(small, large, given.ranges, thresholds)


def _cross_validate(samples: Sequence[_ReadSample]) -> dict[float, list[float]]:
    """For each penalty, every sample's score by a fit to the other folds."""
    scores = {penalty: [0.0] * len(samples) for penalty in _PENALTIES}
    for fold in range(_FOLDS):
        others = [row for row in samples if row.sample.fold != fold]
        for penalty, score in zip(_PENALTIES, _fit_scores(others, _PENALTIES, {}), strict=True):
            for index, row in enumerate(samples):
                if row.sample.fold == fold:
                    scores[penalty][index] = score.expect_of(row.reading).score
    return scores


def _apgr(scores: Sequence[float], sets: Sequence[Sequence[Sample]]) -> float:
    """Mean APGR over the sets. `scores`: scores of all their samples, set after set."""
    left = iter(scores)
    curves = [curve(list(islice(left, len(of_pair))), [sample.graded for sample in of_pair]) for of_pair in sets]
    return sum(of_pair.apgr for of_pair in curves) / len(curves)


def _threshold(scores: Sequence[float], graded: Sequence[Graded], part: float) -> float:
    """The highest score from which the large model's answers recover this part of the gap."""
    whole = curve(scores, graded)
    wanted = whole.small + part * (whole.large - whole.small)
    falling = sorted(set(scores), reverse=True)  # one for each point of the curve after its first
    return next((score for score, right in zip(falling, whole.right[1:], strict=True) if right >= wanted), 0.0)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{_SALT}:{text}".encode()).digest()[:8])
