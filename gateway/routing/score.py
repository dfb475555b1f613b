"""The complexity score: what a large model is expected to win over a small one, from features that need no model.

Two logistic models over the same features say how likely the small and the large model are to be right. Their
difference is what the large one wins; where both are right, or both are wrong, that is nothing, and the small one will
do. `gateway.routing.fitting.fit` finds the weights.
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
from gateway.tenancy.routing_policy import Preference

FORMAT = 1
SHIPPED = Path(__file__).with_name("weights.json")
"""Fitted by `python -m benchmarks.routing --write`."""


class UnusableWeights(OperatorError):
    """A weights file that cannot be read, or was not written by this version's fit."""


@dataclass(frozen=True, slots=True)
class Head:
    """One model's chance to be right: the logistic function of a weighted sum."""

    bias: float
    numbers: tuple[float, ...]
    words: Mapping[str, float]

    def probability(self, numbers: tuple[float, ...], words: frozenset[str]) -> float:
        total = self.bias + sum(map(float.__mul__, self.numbers, numbers))
        known = self.words
        for word in words:
            if word in known:
                total += known[word]
        return 1 / (1 + exp(-total)) if total > -700 else 0.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """How likely each of the pair is to be right."""

    small: float
    large: float

    @property
    def score(self) -> float:
        """The chance that the large one is the better of the two, ties counted half: 0.5 where it wins nothing."""
        return (1 + self.large - self.small) / 2


@dataclass(frozen=True, slots=True)
class ComplexityScore:
    """`thresholds` has, for each preference, the score from which on a question goes to the large model. `ranges` has
    the least and the greatest value of each number that the fit saw: beyond them nothing is known, so a value that is
    further out counts as the nearest one that was seen."""

    small: Head
    large: Head
    ranges: tuple[tuple[float, float], ...]
    thresholds: Mapping[Preference, float]

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """None: the weights that ship with the package.

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
        """Raises: KeyError, TypeError, ValueError."""
        if stored["format"] != FORMAT:
            raise ValueError("another format")
        thresholds = {name: float(stored["thresholds"][name]) for name in Preference}
        bounds = (stored["numbers"][name][2:] for name in NUMBERS)
        ranges = tuple((float(low), float(high)) for low, high in bounds)
        return cls(_head(stored, 0), _head(stored, 1), ranges, MappingProxyType(thresholds))

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads: for each number and word the weights of both, the small model's first; for each
        number its range behind them."""
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
        """For `load`."""
        path.write_text(json.dumps(self.to_json(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")

    def expect(self, question: Question) -> Expectation:
        return self.expect_of(read(question))

    def expect_of(self, reading: Reading) -> Expectation:
        values, words = reading
        numbers = tuple(min(max(value, low), high) for value, (low, high) in zip(values, self.ranges, strict=True))
        return Expectation(self.small.probability(numbers, words), self.large.probability(numbers, words))

    def of(self, question: Question) -> float:
        """In [0, 1], rising with what the large model is expected to win; 0.5 where it wins nothing."""
        return self.expect(question).score


def _head(stored: Mapping[str, Any], which: int) -> Head:
    numbers = tuple(float(stored["numbers"][name][which]) for name in NUMBERS)
    words = {str(word): float(weights[which]) for word, weights in stored["words"].items()}
    return Head(float(stored["bias"][which]), numbers, MappingProxyType(words))


def _rounded(*values: float) -> list[float]:
    return [round(value, 4) for value in values]
