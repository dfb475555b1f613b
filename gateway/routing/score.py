"""The complexity score: the expected gain of the large model over the small one, from features that need no model.

Two logistic regressions over the same features estimate the probability that the small and the large model answer
correctly. Their difference is the expected gain; it is 0 where both are right or both are wrong, and the small model
suffices. RouteLLM (arXiv 2406.18665) routes by such a gain, too. `gateway.routing.fitting.fit` fits the weights.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from gateway.errors import OperatorError
from gateway.routing.features import NUMBERS, Reading, read
from gateway.routing.question import Question
from gateway.tenancy.policies import Preference

FORMAT = 1
SHIPPED = Path(__file__).with_name("weights.json")
"""Default weights, fitted by `python -m benchmarks.routing --write`."""


class UnusableWeights(OperatorError):
    """The weights file cannot be read, or has another format than this version's `fit` writes."""


@dataclass(frozen=True, slots=True)
class Head:
    """Logistic regression of one model: the probability of a correct answer."""

    bias: float
    numbers: tuple[float, ...]
    words: Mapping[str, float]

    def probability(self, numbers: tuple[float, ...], words: frozenset[str]) -> float:
        """The logistic function of the weighted sum of the features."""
        total = self.bias + sum(map(float.__mul__, self.numbers, numbers))
        known = self.words
        for word in words:
            if word in known:
                total += known[word]
        return 1 / (1 + exp(-total)) if total > -700 else 0.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """Probability of a correct answer, for each model of the pair."""

    small: float
    large: float

    @property
    def score(self) -> float:
        """Probability that the large model is the better one, with ties counted half: 0.5 where it gains nothing."""
        return (1 + self.large - self.small) / 2


@dataclass(frozen=True, slots=True)
class ComplexityScore:
    """The fitted score. `thresholds`: for each preference, the score from which questions go to the large model.
    `ranges`: for each number the least and the greatest value in the fit; values outside are clamped, as the fit does
    not extrapolate."""

    small: Head
    large: Head
    ranges: tuple[tuple[float, float], ...]
    thresholds: Mapping[Preference, float]

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Load weights. `path`: weights file; None: the weights of the package.

        Raises:
            UnusableWeights: the file cannot be read, or is not what `fit` writes.
        """
        path = path or SHIPPED
        try:
            return cls.from_json(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnusableWeights(f"{path}: cannot be used as routing weights ({type(error).__name__})") from None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """The score from the weights of `to_json`. Raises KeyError, TypeError or ValueError on any other value."""
        if stored["format"] != FORMAT:
            raise ValueError("another format")
        thresholds = {name: float(stored["thresholds"][name]) for name in Preference}
        bounds = (stored["numbers"][name][2:] for name in NUMBERS)
        ranges = tuple((float(low), float(high)) for low, high in bounds)
        return cls(_head(stored, 0), _head(stored, 1), ranges, MappingProxyType(thresholds))

    def to_json(self) -> dict[str, Any]:
        """The input of `from_json`. Each number and word has two weights, the small model's first; each number's range
        follows its weights."""
        numbers = zip(NUMBERS, self.small.numbers, self.large.numbers, self.ranges, strict=True)
        words = sorted(self.small.words.keys() | self.large.words.keys())
        return {
            "format": FORMAT,
            "thresholds": {name: round(value, 4) for name, value in self.thresholds.items()},
            "bias": _rounded(self.small.bias, self.large.bias),
            "numbers": {name: _rounded(small, large, *bounds) for name, small, large, bounds in numbers},
            "words": {word: _rounded(self.small.words.get(word, 0), self.large.words.get(word, 0)) for word in words},
        }

    def save(self, path: Path) -> None:
        """Write the weights for `load`."""
        path.write_text(json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")

    def expect(self, question: Question) -> Expectation:
        """Estimate both models' probabilities for a question."""
        return self.expect_of(read(question))

    def expect_of(self, reading: Reading) -> Expectation:
        """Estimate both models' probabilities from features that are read already."""
        values, words = reading
        numbers = tuple(min(max(value, low), high) for value, (low, high) in zip(values, self.ranges, strict=True))
        return Expectation(self.small.probability(numbers, words), self.large.probability(numbers, words))

    def of(self, question: Question) -> float:
        """The score of a question, in [0, 1]: 0.5 where the large model gains nothing, and higher with its expected
        gain."""
        return self.expect(question).score


def _head(stored: Mapping[str, Any], which: int) -> Head:
    numbers = tuple(float(stored["numbers"][name][which]) for name in NUMBERS)
    words = {str(word): float(weights[which]) for word, weights in stored["words"].items()}
    return Head(float(stored["bias"][which]), numbers, MappingProxyType(words))


def _rounded(*values: float) -> list[float]:
    return [round(value, 4) for value in values]
