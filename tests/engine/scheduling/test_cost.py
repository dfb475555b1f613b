"""The cost of a step: prediction, learning, division, budget."""

from collections.abc import Iterator
from dataclasses import astuple
from itertools import accumulate
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.scheduling.cost import (
    H200_LLAMA_8B,
    NO_WORK,
    PRIOR_VARIANCE,
    CostCoefficients,
    StepCostModel,
    StepWork,
    row_work,
    step_work,
    total,
)

CPU_SMALL_MODEL = CostCoefficients(13e6, 2.7e6, 3_000, 50)
"""Two cores: the weights are read in 13 ms, and a token costs much more of a step than on a GPU."""

Spans = list[tuple[int, int]]
"""The rows of a step: where each starts, and how many tokens it has."""

spans = st.lists(st.tuples(st.integers(0, 100_000), st.integers(1, 2048)), min_size=1, max_size=40)
works = spans.map(lambda rows: [row_work(*row) for row in rows])
coefficients = st.builds(CostCoefficients, st.floats(0, 1e8), st.floats(0, 1e6), st.floats(0, 1e4), st.floats(0, 1e3))


def split(model: StepCostModel, step: Spans, elapsed_ns: int) -> list[int]:
    starts, tokens = zip(*step, strict=True)
    return model.split_ns(starts, tokens, elapsed_ns)


def mixed_steps(rng: Random) -> Iterator[StepWork]:
    """Steps of decode rows, more often than not with a chunk of prefill."""
    while True:
        step = [row_work(rng.randrange(10, 4000), 1) for _ in range(rng.randrange(1, 256))]
        if rng.random() < 0.6:
            step.append(row_work(rng.randrange(8000), rng.randrange(16, 2048)))
        yield total(step)


def decode_steps(rng: Random) -> Iterator[StepWork]:
    while True:
        yield total(row_work(rng.randrange(900, 1100), 1) for _ in range(64))


def teach(
    model: StepCostModel,
    truth: CostCoefficients,
    steps: Iterator[StepWork],
    count: int,
    rng: Random,
    noise: float = 0.05,
) -> None:
    oracle = StepCostModel.from_coefficients(truth)
    for _, work in zip(range(count), steps, strict=False):
        model.observe(work, int(oracle.predict_ns(work) * max(rng.gauss(1, noise), 0.01)))


def worst_error(model: StepCostModel, truth: CostCoefficients, steps: Iterator[StepWork]) -> float:
    """The largest error of a prediction, relative to the truth, over a hundred steps."""
    oracle = StepCostModel.from_coefficients(truth)
    return max(
        abs(model.predict_ns(work) / oracle.predict_ns(work) - 1) for _, work in zip(range(100), steps, strict=False)
    )


def assert_sound(model: StepCostModel) -> None:
    """No coefficient is negative or infinite; the covariance is one, and bounded."""
    assert all(0 <= value < float("inf") for value in astuple(model.coefficients))
    covariance = model._covariance
    rounding = 1e-6 * PRIOR_VARIANCE
    for i in range(4):
        assert -rounding <= covariance[i][i] <= PRIOR_VARIANCE + rounding
        for j in range(4):
            assert covariance[i][j] == pytest.approx(covariance[j][i], abs=rounding)
            assert covariance[i][j] ** 2 <= (covariance[i][i] + rounding) * (covariance[j][j] + rounding)


def test_the_work_of_rows() -> None:
    assert row_work(100, 1) == StepWork(tokens=1, context_tokens=101, prefill_pairs=0, rows=1)
    assert row_work(10, 3) == StepWork(tokens=3, context_tokens=13, prefill_pairs=11 + 12 + 13, rows=1)
    assert total([row_work(100, 1), row_work(10, 3)]) == StepWork(4, 114, 36, 2)
    assert total([]) == NO_WORK


@given(spans)
def test_the_columns_of_a_step_have_the_work_of_its_rows(step: Spans) -> None:
    assert step_work(*zip(*step, strict=True)) == total(row_work(*row) for row in step)


@given(st.integers(0, 10_000), st.integers(4, 5000), st.data())
def test_chunks_have_the_pairs_of_the_whole(start: int, tokens: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(2, tokens - 2))
    chunks = total([row_work(start, first), row_work(start + first, tokens - first)])
    assert chunks.prefill_pairs == row_work(start, tokens).prefill_pairs


@given(coefficients, spans, st.integers(0, 10**12))
def test_a_measured_time_is_divided_exactly(truth: CostCoefficients, step: Spans, elapsed_ns: int) -> None:
    model = StepCostModel.from_coefficients(truth)
    shares = split(model, step, elapsed_ns)
    assert sum(shares) == elapsed_ns
    assert len(shares) == len(step)
    assert all(isinstance(share, int) and share >= 0 for share in shares)
    assert shares == split(model, step, elapsed_ns)


@given(st.lists(st.tuples(st.integers(0, 2**60), st.integers(1, 2**60)), min_size=1), st.integers(0, 2**63))
def test_nothing_breaks_the_sum(step: Spans, elapsed_ns: int) -> None:
    shares = split(StepCostModel(), step, elapsed_ns)
    assert sum(shares) == elapsed_ns
    assert min(shares) >= 0


@given(spans)
def test_each_share_is_its_marginal_cost_and_an_equal_part_of_the_step(step: Spans) -> None:
    model = StepCostModel.from_coefficients(H200_LLAMA_8B)
    c = H200_LLAMA_8B
    works = [row_work(*row) for row in step]
    elapsed_ns = 3 * model.predict_ns(total(works))
    for work, share in zip(works, split(model, step, elapsed_ns), strict=True):
        marginal = c.token_ns * work.tokens + c.context_token_ns * work.context_tokens + c.pair_ns * work.prefill_pairs
        assert share == pytest.approx(3 * (c.step_ns / len(step) + marginal), rel=1e-6, abs=3)


def test_equal_rows_pay_alike() -> None:
    shares = split(StepCostModel(), [(50, 1)] * 7, 1_000_003)
    assert max(shares) - min(shares) <= 1
    free = StepCostModel.from_coefficients(CostCoefficients(0, 0, 0, 0))
    assert split(free, [(50, 1), (0, 100)], 11) == [5, 6]


def test_an_empty_step_divides_no_time() -> None:
    assert StepCostModel().split_ns([], [], 0) == []


@given(coefficients, works.map(lambda step: step[0]), st.integers(0, 3), st.integers(1, 10**6))
def test_more_work_takes_no_less_time(truth: CostCoefficients, work: StepWork, feature: int, more: int) -> None:
    model = StepCostModel.from_coefficients(truth)
    grown = StepWork(*[value + more * (i == feature) for i, value in enumerate(work)])
    assert model.predict_ns(grown) >= model.predict_ns(work)


@pytest.mark.parametrize("truth", [H200_LLAMA_8B, CPU_SMALL_MODEL, CostCoefficients(2e6, 1e4, 100, 0.5)])
@pytest.mark.parametrize("seed", range(3))
def test_finds_the_true_coefficients(truth: CostCoefficients, seed: int) -> None:
    rng = Random(seed)
    model = StepCostModel()
    teach(model, truth, mixed_steps(rng), 1500, rng)
    assert astuple(model.coefficients) == pytest.approx(astuple(truth), rel=0.1)
    assert worst_error(model, truth, mixed_steps(rng)) < 0.05


def test_the_first_step_sets_the_scale() -> None:
    model = StepCostModel()
    model.observe(row_work(100, 1), 50_000)
    assert model.predict_ns(row_work(100, 1)) == pytest.approx(50_000, rel=0.01)
    assert model.predict_ns(row_work(0, 512)) > 50_000


def test_a_few_steps_are_enough_for_a_rough_prediction() -> None:
    rng = Random(3)
    model = StepCostModel()
    teach(model, CPU_SMALL_MODEL, mixed_steps(rng), 30, rng)
    assert worst_error(model, CPU_SMALL_MODEL, mixed_steps(rng)) < 0.3


def test_forgives_slow_first_steps() -> None:
    """Warming up, a device takes ten times as long."""
    rng = Random(4)
    model = StepCostModel()
    slow = CostCoefficients(*(10 * value for value in astuple(H200_LLAMA_8B)))
    teach(model, slow, mixed_steps(rng), 3, rng)
    teach(model, H200_LLAMA_8B, mixed_steps(rng), 50, rng)
    assert worst_error(model, H200_LLAMA_8B, mixed_steps(rng)) < 0.2


@pytest.mark.parametrize("hang_ns", [10**9, 30 * 10**9, 10**13])
@pytest.mark.parametrize("truth", [H200_LLAMA_8B, CPU_SMALL_MODEL])
def test_one_step_of_each_kind_undoes_a_first_step_that_hung(truth: CostCoefficients, hang_ns: int) -> None:
    """The rest of a short prompt, decode steps, then the first chunk of a long prompt: none is mistaken for long."""
    rng = Random(11)
    model, oracle = StepCostModel(), StepCostModel.from_coefficients(truth)
    model.observe(row_work(0, 24), hang_ns)
    decode = [row_work(24 + step, 1) for step in range(6)]
    for work in (*decode, row_work(0, 64), row_work(64, 128), *decode, row_work(192, 128)):
        model.observe(work, int(oracle.predict_ns(work) * rng.gauss(1, 0.02)))
    for work in (*decode, row_work(320, 128)):
        assert oracle.predict_ns(work) / 2 <= model.predict_ns(work) <= 2 * oracle.predict_ns(work)


def test_a_fast_step_says_nothing_of_work_that_it_does_not_have() -> None:
    """The uncertain cost of prefill turns out to be a tenth of the estimate; the known cost of decode is unaffected."""
    model, decode, prefill = StepCostModel(), row_work(100, 1), row_work(0, 64)
    for _ in range(50):
        model.observe(decode, 4_000_000)
    model.observe(prefill, 400_000_000)
    model.observe(prefill, 40_000_000)
    assert model.predict_ns(decode) == pytest.approx(4_000_000, rel=0.5)


def test_an_outlier_counts_little() -> None:
    rng = Random(5)
    model = StepCostModel()
    teach(model, H200_LLAMA_8B, mixed_steps(rng), 500, rng)
    work = next(mixed_steps(rng))
    before_ns = model.predict_ns(work)
    model.observe(work, 10 * before_ns)
    assert before_ns <= model.predict_ns(work) < 1.01 * before_ns


def test_a_hang_is_not_believed() -> None:
    """However often one of them hangs, usual steps are predicted as before."""
    rng = Random(12)
    model = StepCostModel()
    teach(model, H200_LLAMA_8B, mixed_steps(rng), 300, rng)
    for _ in range(10):
        model.observe(next(mixed_steps(rng)), 30_000_000_000)
        assert worst_error(model, H200_LLAMA_8B, mixed_steps(rng)) < 0.15
        teach(model, H200_LLAMA_8B, mixed_steps(rng), 20, rng)


def test_one_step_in_fifty_may_be_an_outlier() -> None:
    rng = Random(6)
    model = StepCostModel()
    oracle = StepCostModel.from_coefficients(H200_LLAMA_8B)
    for _, work in zip(range(1500), mixed_steps(rng), strict=False):
        model.observe(work, int(oracle.predict_ns(work) * rng.gauss(1, 0.05) * (10 if rng.random() < 0.02 else 1)))
    assert worst_error(model, H200_LLAMA_8B, mixed_steps(rng)) < 0.1


def test_follows_a_drift() -> None:
    rng = Random(7)
    model = StepCostModel()
    for factor in accumulate([1.0] + [1.0005] * 2000, lambda a, b: a * b):
        truth = CostCoefficients(*(factor * value for value in astuple(H200_LLAMA_8B)))
        teach(model, truth, mixed_steps(rng), 1, rng)
    assert worst_error(model, truth, mixed_steps(rng)) < 0.3
    teach(model, truth, mixed_steps(rng), 1000, rng)
    assert worst_error(model, truth, mixed_steps(rng)) < 0.12


@pytest.mark.parametrize("factor", [0.2, 2.0, 5.0])
def test_follows_a_lasting_jump_within_twenty_steps(factor: float) -> None:
    rng = Random(8)
    model = StepCostModel()
    teach(model, H200_LLAMA_8B, mixed_steps(rng), 500, rng)
    truth = CostCoefficients(*(factor * value for value in astuple(H200_LLAMA_8B)))
    teach(model, truth, mixed_steps(rng), 20, rng)
    assert worst_error(model, truth, mixed_steps(rng)) < 0.25


def test_thousands_of_decode_steps_do_not_forget_what_prefill_costs() -> None:
    rng = Random(9)
    model = StepCostModel()
    teach(model, H200_LLAMA_8B, mixed_steps(rng), 1000, rng)
    teach(model, H200_LLAMA_8B, decode_steps(rng), 8_000, rng)
    assert_sound(model)
    assert worst_error(model, H200_LLAMA_8B, mixed_steps(rng)) < 0.15


def test_learns_prefill_after_nothing_but_equal_decode_steps() -> None:
    """Collinear from the first step on: which coefficient the time belongs to cannot be known."""
    rng = Random(10)
    model = StepCostModel()
    same = total([row_work(1000, 1)] * 64)
    teach(model, CPU_SMALL_MODEL, iter(lambda: same, NO_WORK), 8_000, rng)
    assert_sound(model)
    assert worst_error(model, CPU_SMALL_MODEL, iter(lambda: same, NO_WORK)) < 0.05
    teach(model, CPU_SMALL_MODEL, mixed_steps(rng), 50, rng)
    assert worst_error(model, CPU_SMALL_MODEL, mixed_steps(rng)) < 0.3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(works, st.integers(0, 10**13)), max_size=60))
def test_stays_sound_whatever_it_is_told(steps: list[tuple[list[StepWork], int]]) -> None:
    model = StepCostModel()
    for step, elapsed_ns in steps:
        model.observe(total(step), elapsed_ns)
        assert_sound(model)


def test_a_model_from_coefficients_predicts_by_them() -> None:
    model = StepCostModel.from_coefficients(CostCoefficients(100, 10, 1, 0.5))
    assert model.coefficients == CostCoefficients(100, 10, 1, 0.5)
    assert model.predict_ns(StepWork(2, 30, 40, 1)) == 100 + 20 + 30 + 20
    model.observe(row_work(0, 1), 0)
    assert model.coefficients == CostCoefficients(100, 10, 1, 0.5)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_refuses_impossible_coefficients(bad: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        CostCoefficients(1, bad, 1, 1)


def test_the_preset_is_what_its_docstring_says() -> None:
    assert astuple(H200_LLAMA_8B) == pytest.approx((3.9e6, 25_300, 34.1, 0.88), rel=0.01)


@given(coefficients, works, st.integers(0, 10**9), st.integers(0, 20_000))
def test_the_budget_fills_the_step(truth: CostCoefficients, decode: list[StepWork], target_ns: int, start: int) -> None:
    model = StepCostModel.from_coefficients(truth)
    low, high = 16, 8192
    budget = model.token_budget(target_ns, total(decode), low=low, high=high, start=start)
    assert low <= budget <= high
    assume(target_ns > 0)
    if budget > low:
        assert model.predict_ns(total([*decode, row_work(start, budget)])) <= target_ns * (1 + 1e-9) + 1
    if budget < high:
        assert model.predict_ns(total([*decode, row_work(start, budget + 2)])) >= target_ns * (1 - 1e-9) - 1


def test_the_budget_shrinks_with_the_decode_work() -> None:
    model = StepCostModel.from_coefficients(H200_LLAMA_8B)
    budgets = [
        model.token_budget(20_000_000, total([row_work(2000, 1)] * count), low=16, high=8192)
        for count in range(0, 400, 50)
    ]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] == pytest.approx((20e6 - 3.9e6) / 25_300, rel=0.05)
    assert budgets[-1] == 16
