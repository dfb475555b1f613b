"""From samples to the two logistic models of a score.

Each model's weights maximise the likelihood of which questions it got right, less a penalty for every weight's square.
Convex, in double precision and without chance: the same samples give the same weights.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from gateway.routing.features import NUMBERS, read
from gateway.routing.question import Question
from gateway.routing.score import Head

_RARE = 5
"""A word that fewer questions have is left out: it would be learnt by heart."""
_COMMON = 0.9
"""A word of more than this share of the questions says nothing of any one of them."""
_STEPS = 200


@dataclass(frozen=True, slots=True)
class Design:
    """Questions as the rows of `columns` [questions, numbers + words]: each number less its mean over its deviation
    (`means` and `deviations` [numbers]), then 1 for each word that occurs. `ranges` has each number's least and
    greatest value."""

    words: tuple[str, ...]
    ranges: tuple[tuple[float, float], ...]
    means: Tensor
    deviations: Tensor
    columns: Tensor


def design(questions: Sequence[Question]) -> Design:
    seen = [read(question) for question in questions]
    counts = Counter(word for _, words in seen for word in words)
    known = tuple(sorted(word for word, count in counts.items() if _RARE <= count <= _COMMON * len(seen)))
    place = {word: index for index, word in enumerate(known)}
    numbers = torch.tensor([values for values, _ in seen], dtype=torch.float64)
    means, deviations = numbers.mean(0), numbers.std(0, correction=0)
    deviations = torch.where(deviations > 1e-9, deviations, 1.0)  # what never varies gets no weight
    present = torch.zeros(len(seen), len(known), dtype=torch.float64)
    for row, (_, words) in enumerate(seen):
        present[row, [place[word] for word in words if word in place]] = 1
    ranges = tuple(zip(numbers.amin(0).tolist(), numbers.amax(0).tolist(), strict=True))
    return Design(known, ranges, means, deviations, torch.cat([(numbers - means) / deviations, present], dim=1))


def fit_head(given: Design, right: Sequence[bool], penalty: float) -> Head:
    """`right` [questions]: whether the model was."""
    target = torch.tensor(right, dtype=torch.float64)
    weights = torch.zeros(given.columns.shape[1] + 1, dtype=torch.float64, requires_grad=True)
    search = torch.optim.LBFGS([weights], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> float:
        logits = given.columns @ weights[1:] + weights[0]
        value = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        value = value + penalty / 2 * weights[1:].square().sum()
        (weights.grad,) = torch.autograd.grad(value, [weights])
        return float(value.detach())

    search.step(loss)  # type: ignore[no-untyped-call]
    return _head(given, weights.detach())


def _head(given: Design, weights: Tensor) -> Head:
    """The same sum over numbers as they are read."""
    numbers = weights[1 : len(NUMBERS) + 1] / given.deviations
    bias = weights[0] - (numbers * given.means).sum()
    words = dict(zip(given.words, weights[len(NUMBERS) + 1 :].tolist(), strict=True))
    return Head(float(bias), tuple(numbers.tolist()), MappingProxyType(words))
