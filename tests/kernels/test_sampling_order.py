"""The order of temperature and thresholds is that of vLLM V1's sampler, stated here again in numpy.

The order of biases and penalties, which come first, is held by `tests/engine/execution/test_changes.py`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch

from kernels import reference
from kernels.host import SamplingColumns

ROWS, VOCAB = 400, 24

Logits = npt.NDArray[np.float64]


class Params(NamedTuple):
    temperature: float
    min_p: float
    top_k: int
    top_p: float


Stage = Callable[[Logits, Params], Logits]


def softmax(logits: Logits) -> Logits:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def temperature(logits: Logits, params: Params) -> Logits:
    return logits / params.temperature


def min_p(logits: Logits, params: Params) -> Logits:
    probabilities = softmax(logits)
    return np.where(probabilities >= params.min_p * probabilities.max(), logits, -np.inf)


def top_k(logits: Logits, params: Params) -> Logits:
    return np.where(logits >= np.sort(logits)[-params.top_k], logits, -np.inf)


def top_p(logits: Logits, params: Params) -> Logits:
    """The most likely tokens, up to the first with which they have the mass."""
    likeliest = np.argsort(-softmax(logits))
    mass_before = np.cumsum(softmax(logits)[likeliest]) - softmax(logits)[likeliest]
    kept = np.full(len(logits), -np.inf)
    chosen = likeliest[mass_before < params.top_p]
    kept[chosen] = logits[chosen]
    return kept


V1: Sequence[Stage] = (temperature, min_p, top_k, top_p)


def kept_by(order: Sequence[Stage], logits: Logits, params: Params) -> list[bool]:
    for stage in order:
        logits = stage(logits, params)
    return np.isfinite(logits).tolist()


@pytest.fixture(scope="module")
def cases() -> list[tuple[Logits, Params]]:
    rng = np.random.default_rng(7)
    return [
        (
            rng.normal(0, 2, VOCAB).astype(np.float32).astype(np.float64),
            Params(
                rng.choice([0.5, 1.0, 1.8]),
                rng.choice([0.02, 0.1, 0.3]),
                int(rng.integers(2, 12)),
                rng.uniform(0.4, 0.95),
            ),
        )
        for _ in range(ROWS)
    ]


def test_the_tokens_that_are_kept_are_those_of_the_order(cases: list[tuple[Logits, Params]]) -> None:
    logits = torch.tensor(np.array([logits for logits, _ in cases]), dtype=torch.float32)
    column = {name: torch.tensor([getattr(params, name) for _, params in cases]) for name in Params._fields}
    columns = SamplingColumns(
        inverse_temperature=(1 / column["temperature"]).float(),
        noise_scale=torch.ones(ROWS),
        top_k=column["top_k"],
        top_p=column["top_p"].float(),
        min_p=column["min_p"].float(),
        keys=torch.zeros((ROWS, 2), dtype=torch.int64),
    )
    scaled = logits * columns.inverse_temperature[:, None]
    kept = (scaled >= reference.threshold(scaled, columns)).tolist()
    assert kept == [kept_by(V1, *case) for case in cases]


@pytest.mark.parametrize(
    "other",
    [
        (min_p, top_k, top_p, temperature),
        (temperature, top_p, min_p, top_k),
        (temperature, min_p, top_p, top_k),
        (temperature, top_k, top_p, min_p),
    ],
)
def test_any_other_order_keeps_other_tokens(cases: list[tuple[Logits, Params]], other: Sequence[Stage]) -> None:
    """So the test above tells the orders apart. (`min_p` and `top_k` may change places.)"""
    assert any(kept_by(other, *case) != kept_by(V1, *case) for case in cases)
