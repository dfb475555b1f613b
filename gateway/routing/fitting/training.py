"""From samples to the two logistic models of a score.

Each model's weights maximise the likelihood of which questions it got right, less a penalty for every weight's square.
Convex, in double precision and without chance: the same samples give the same weights.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType

import torch
from torch import Tensor

from gateway.routing.features import NUMBERS, Reading
from gateway.routing.score import Head

_RARE = 5
"""A word that fewer questions have is left out: it would be learnt by heart."""
_COMMON = 0.9
"""A word of more than this share of the questions says nothing of any one of them."""
_STEPS = 100


@dataclass(frozen=True, slots=True)
class Design:
    """What was read of so many questions. `numbers` [questions, numbers] in fp64, each less its mean over its deviation
    (`means` and `deviations` [numbers]); `ranges` has each number's least and greatest value. The words that question i
    has are `present[starts[i]:starts[i + 1]]`, places in `words`."""

    numbers: Tensor
    means: Tensor
    deviations: Tensor
    ranges: tuple[tuple[float, float], ...]
    words: tuple[str, ...]
    present: Tensor
    starts: Tensor


def design(readings: Sequence[Reading]) -> Design:
    counts = Counter(word for _, words in readings for word in words)
    known = tuple(sorted(word for word, count in counts.items() if _RARE <= count <= _COMMON * len(readings)))
    place = {word: index for index, word in enumerate(known)}
    present = [[place[word] for word in sorted(words) if word in place] for _, words in readings]
    numbers = torch.tensor([values for values, _ in readings], dtype=torch.float64)
    means, deviations = numbers.mean(0), numbers.std(0, correction=0)
    deviations = torch.where(deviations > 1e-9, deviations, 1.0)  # what never varies gets no weight
    return Design(
        numbers=(numbers - means) / deviations,
        means=means,
        deviations=deviations,
        ranges=tuple(zip(numbers.amin(0).tolist(), numbers.amax(0).tolist(), strict=True)),
        words=known,
        present=torch.tensor([index for row in present for index in row], dtype=torch.int64),
        starts=torch.tensor([0, *accumulate(map(len, present[:-1]))], dtype=torch.int64),
    )


def fit_heads(given: Design, right: Sequence[tuple[bool, bool]], penalty: float) -> tuple[Head, Head]:
    """The small model's and the large one's. `right` [questions]: whether each was."""
    target = torch.tensor(right, dtype=torch.float64)
    shapes = ((2,), (len(NUMBERS), 2), (len(given.words), 2))
    bias, numbers, words = weights = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    search = torch.optim.LBFGS(weights, max_iter=_STEPS, line_search_fn="strong_wolfe")

    def loss() -> float:
        logits = bias + given.numbers @ numbers
        logits = logits + torch.nn.functional.embedding_bag(given.present, words, given.starts, mode="sum")
        value = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        value = value + penalty / 2 * (numbers.square().sum() + words.square().sum())
        for weight, gradient in zip(weights, torch.autograd.grad(value, weights), strict=True):
            weight.grad = gradient
        return float(value.detach())

    search.step(loss)  # type: ignore[no-untyped-call]
    of_small, of_large = (_head(given, *(weight.detach()[..., which] for weight in weights)) for which in (0, 1))
    return of_small, of_large


def _head(given: Design, bias: Tensor, numbers: Tensor, words: Tensor) -> Head:
    """The same sum over numbers as they are read."""
    numbers = numbers / given.deviations
    by_word = dict(zip(given.words, words.tolist(), strict=True))
    return Head(float(bias - (numbers * given.means).sum()), tuple(numbers.tolist()), MappingProxyType(by_word))
