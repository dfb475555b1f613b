"""Fits of step times: what they find, what they refuse, and the file that stores them."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.planning.fit_file import InvalidFit, MeasuredMachine, StoredFit
from engine.planning.fitting import MIN_STEPS, StepSample, TooFewSteps, fit_steps, non_negative_least_squares
from engine.planning.step_features import MeasuredRange, StepFeatures, features_of
from tests.support.planning import linear_times


def samples(count: int = 400, noise: float = 0.0, seed: int = 0) -> list[StepSample]:
    random, truth, made = Random(seed), linear_times(), []
    for _ in range(count):
        prefill = random.choice((0, random.randrange(1, 512)))
        rows = random.randrange(0, 64)
        features = StepFeatures(prefill, prefill * random.randrange(1, 1000), rows, rows * random.randrange(1, 1000))
        ns = truth.predict_ns(features) * (1 + random.uniform(-noise, noise))
        made.append(StepSample(features, round(ns)))
    return made


def test_exact_steps_give_their_coefficients() -> None:
    fit, truth = fit_steps(samples()), linear_times()
    for name in ("step_ns", "prefill_token_ns", "prefill_pair_ns", "decode_row_ns", "decode_context_ns"):
        assert getattr(fit.times, name) == pytest.approx(getattr(truth, name), rel=1e-3)
    assert fit.median_error < 1e-6
    assert abs(fit.total_error) < 1e-6


def test_noisy_steps_with_outliers() -> None:
    noisy = [
        sample._replace(ns=10 * sample.ns) if index % 50 == 0 else sample
        for index, sample in enumerate(samples(2000, noise=0.1))
    ]
    fit = fit_steps(noisy)
    assert fit.times.step_ns == pytest.approx(1e7, rel=0.1)
    assert fit.median_error < 0.08
    assert fit.noise[0] < 1 < fit.noise[-1]
    assert fit.noise[-1] > 5, "a slow step is part of the residuals"
    assert list(fit.noise) == sorted(fit.noise)


def test_too_few_steps() -> None:
    with pytest.raises(TooFewSteps, match=str(MIN_STEPS)):
        fit_steps(samples(MIN_STEPS - 1))
    with pytest.raises(TooFewSteps, match="decode row"):
        fit_steps([StepSample(StepFeatures(10, 55, 0, 0), 100)] * MIN_STEPS)


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_least_squares_are_optimal(seed: int, columns: int) -> None:
    """The conditions of Karush, Kuhn and Tucker: no gradient where x > 0, and none towards x > 0 where x = 0."""
    random = np.random.default_rng(seed)
    matrix, target = random.normal(size=(12, columns)), random.normal(size=12)
    found = non_negative_least_squares(matrix, target)
    gradient = matrix.T @ (matrix @ found - target)
    assert (found >= 0).all()
    assert np.abs(gradient[found > 0]).max(initial=0) < 1e-6
    assert gradient[found == 0].min(initial=0) > -1e-6


def test_features_of_a_mixed_step() -> None:
    # a decode row at position 99, a chunk of 3 tokens after 10, and a prompt of 2
    assert features_of([99, 10, 0], [1, 3, 2]) == StepFeatures(5, 3 * 10 + 6 + 3, 1, 100)
    assert features_of([99, 4], [1, 1]) == StepFeatures(0, 0, 2, 105)


def test_the_range_names_what_is_outside() -> None:
    measured = MeasuredRange.of([StepFeatures(100, 5000, 0, 0), StepFeatures(0, 0, 8, 4000)])
    assert measured.most == StepFeatures(100, 5000, 8, 4000)
    assert measured.outside(StepFeatures(105, 5000, 8, 4000)) is None
    assert measured.outside(StepFeatures(0, 0, 9, 100)) == "decode_rows"
    assert measured.outside(StepFeatures(0, 0, 8, 5000)) == "decode_context"


MACHINE = MeasuredMachine(
    name="here",
    memory_bytes=10**10,
    bytes_s=1e10,
    flop_s=1e11,
    on_gpu=False,
    model="m.gguf",
    weight_bytes=10**8,
    num_blocks=500,
    max_running=16,
    step_tokens=512,
    chunk_tokens=512,
    max_model_len=2048,
    request_ns=10**6,
)


def test_a_file_keeps_the_fit(tmp_path: Path) -> None:
    stored = StoredFit(MACHINE, fit_steps(samples(noise=0.2)))
    stored.save(tmp_path / "fit.json")
    assert StoredFit.load(tmp_path / "fit.json") == stored


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda content: content.pop("coefficients"), "coefficients"),
        (lambda content: content["range"].pop("decode_rows"), "decode_rows"),
        (lambda content: content["machine"].update(extra=1), "extra"),
        (lambda content: content.update(version=2), "kind and version"),
    ],
)
def test_a_file_that_is_no_fit(tmp_path: Path, change, named: str) -> None:
    content = StoredFit(MACHINE, fit_steps(samples())).to_json()
    change(content)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidFit, match=named):
        StoredFit.load(path)
