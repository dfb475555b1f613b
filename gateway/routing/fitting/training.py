"""Training of the two logistic regressions of a score.

Each model's weights maximise the log-likelihood of its correct answers minus an L2 penalty. The problem is convex and
solved by L-BFGS in double precision without randomness, so the same samples give the same weights.
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
"""Words in fewer questions than this are dropped, as the fit would memorise them."""
_COMMON = 0.9
"""Words in more than this share of the questions are dropped, as they do not discriminate."""
_STEPS = 100


@dataclass(frozen=True, slots=True)
class Design:
    """Design matrix of a set of questions. `numbers` [questions, numbers], fp64: standardised with `means` and
    `deviations` [numbers]. `ranges`: each number's least and greatest value. The words of question i are
    `present[starts[i]:starts[i + 1]]`, indices into `words`."""

    numbers: Tensor
    means: Tensor
    deviations: Tensor
    ranges: tuple[tuple[float, float], ...]
    words: tuple[str, ...]
    present: Tensor
    starts: Tensor


def design(readings: Sequence[Reading]) -> Design:
    """Build the design matrix from the questions' features."""
    counts = Counter(word for _, words in readings for word in words)
    known = tuple(sorted(word for word, count in counts.items() if _RARE <= count <= _COMMON * len(readings)))
    place = {word: index for index, word in enumerate(known)}
    present = [[place[word] for word in sorted(words) if word in place] for _, words in readings]
    numbers = torch.tensor([values for values, _ in readings], dtype=torch.float64)
    means, deviations = numbers.mean(0), numbers.std(0, correction=0)
    deviations = torch.where(deviations > 1e-9, deviations, 1.0)  # a constant feature gets no weight
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
    """Fit the small and the large model's regressions. `right` [questions]: for each, whether the small and the large
    model was right. `penalty`: weight of the L2 penalty."""
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
    """The same regression over numbers that are not standardised."""
    numbers = numbers / given.deviations
    by_word = dict(zip(given.words, words.tolist(), strict=True))
    return Head(float(bias - (numbers * given.means).sum()), tuple(numbers.tolist()), MappingProxyType(by_word))
