"""The step cost model: a linear model of a step's time, refit by every measured step (recursive least squares).

It is the single source of step times: for the token budget, predicted waits, the simulator, and the division of a
step's time among its rows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from math import sqrt
from operator import sub
from typing import NamedTuple, Self

from engine.scheduling.measured_work import MeasuredWork

MEMORY = 0.998
"""Forgetting factor: the weight of a measurement when the next one of its kind is added; about the last 500 count."""
NOISE_VARIANCE = 0.1**2
"""Variance of a step's time relative to its prediction: equal steps differ by about a tenth."""
PRIOR_VARIANCE = 10.0**2
"""Prior variance of a coefficient relative to its first value. Also the maximum later."""
PLAUSIBLE_DEVIATIONS = 3.0
SLOW_STREAK = 8
"""This many implausibly slow steps in a row mean that the device is slower."""
START_STEPS = 16
"""Any of the first steps may set the scale instead of earlier ones that were slow by accident."""
START_SPREAD = 32.0
"""The maximum plausible ratio of two steps' scales, each its time over that on the reference device."""
SPEED_VARIANCE = 1.0
"""Relative variance of a device's speed when it has changed."""
DOUBT = 10.0
"""Factor on the coefficients' variance after the device's speed has changed."""
_SMALLEST_TOTAL_NS = 1e-9
"""Predicted step times below this are too small to divide by; the time is then split equally."""


class StepWork(NamedTuple):
    """The features of a step's time, summed over its rows. Additive: the `total` of the rows is the step's work.

    `context_tokens`: tokens whose KV the rows read. `prefill_pairs`: (query, key) pairs of rows with more than one
    token; a one-token row has as many pairs as `context_tokens`, and they are not counted here.
    """

    tokens: int
    context_tokens: int
    prefill_pairs: int
    rows: int


NO_WORK = StepWork(0, 0, 0, 0)


def row_work(start: int, tokens: int) -> StepWork:
    """The work of a row that computes `tokens` tokens from position `start` on, with causal attention.

    Pairs are tokens x mean context, so a prompt has as many in chunks as in one piece.
    """
    pairs = tokens * start + tokens * (tokens + 1) // 2 if tokens > 1 else 0
    return StepWork(tokens, start + tokens, pairs, 1)


def total(works: Iterable[StepWork]) -> StepWork:
    """The work of a step with these rows."""
    columns = tuple(zip(*works, strict=True))
    return StepWork(*map(sum, columns)) if columns else NO_WORK


def step_work(starts: Sequence[int], tokens: Sequence[int]) -> StepWork:
    """The `total` of the rows' `row_work`, from columns: called once per step."""
    rows, all_tokens = len(starts), sum(tokens)
    pairs = 0
    if all_tokens > rows:
        pairs = sum(
            row_work(start, count).prefill_pairs for start, count in zip(starts, tokens, strict=True) if count > 1
        )
    return StepWork(all_tokens, sum(starts) + all_tokens, pairs, rows)


@dataclass(frozen=True, slots=True)
class CostCoefficients:
    """step time = step_ns + token_ns * tokens + context_token_ns * context_tokens + pair_ns * prefill_pairs.

    `step_ns`: the constant cost of a step, launching it and reading the weights once. None is negative.
    """

    step_ns: float
    token_ns: float
    context_token_ns: float
    pair_ns: float

    def __post_init__(self) -> None:
        if not all(0.0 <= value < float("inf") for value in astuple(self)):
            raise ValueError(f"cost coefficients must be finite and not negative: {self}")

    def predict_ns(self, work: StepWork) -> float:
        """The time of a step with this work."""
        return (
            self.step_ns
            + self.token_ns * work.tokens
            + self.context_token_ns * work.context_tokens
            + self.pair_ns * work.prefill_pairs
        )


def roofline_coefficients(
    *,
    weight_bytes: float,
    kv_bytes_per_token: float,
    flops_per_token: float,
    flops_per_pair: float,
    bytes_per_s: float,
    flops_per_s: float,
) -> CostCoefficients:
    """A model's coefficients on a device with these rates: bytes over bandwidth, operations over throughput (roofline:
    Williams et al. 2009).

    An upper estimate, as it adds what a good kernel overlaps.
    """
    return CostCoefficients(
        step_ns=1e9 * weight_bytes / bytes_per_s,
        token_ns=1e9 * flops_per_token / flops_per_s,
        context_token_ns=1e9 * kv_bytes_per_token / bytes_per_s,
        pair_ns=1e9 * flops_per_pair / flops_per_s,
    )


H200_LLAMA_8B = roofline_coefficients(
    weight_bytes=2 * 7.5e9,
    kv_bytes_per_token=2 * 32 * 8 * 128 * 2,
    flops_per_token=2 * 7.5e9,
    flops_per_pair=4 * 32 * 32 * 128,
    bytes_per_s=0.8 * 4.8e12,
    flops_per_s=0.6 * 989e12,
)
"""Llama 3.1 8B in bf16 on one H200: 3.9 ms a step, 25 us a token, 34 ns a context token, 0.9 ns a pair.

Of its 8.03e9 parameters, the 0.5e9 of the embedding are looked up, not read: 7.5e9 of 2 bytes, 2 operations a
token each. KV of a token: (K, V) x 32 layers x 8 KV heads x 128 x 2 bytes = 128 KiB. A pair: multiply and add, for
QK and for PV, x 32 layers x 32 heads x 128. The device's 4.8 TB/s and 989 dense bf16 TFLOP/s (NVIDIA's data sheet)
are reached to 80 % and 60 %.
"""


class StepCostModel:
    """Predicts a step's time, learns from measured steps, and divides a measured time among a step's rows.

    Recursive least squares on relative errors, so that a long step does not outweigh a short one, in units of the
    first coefficients, so that one variance fits all. Forgetting is directional (Kulhavy 1987, Restricted exponential
    forgetting in real-time identification): a step discounts old information only along its own mix of work. Hours of
    decode leave the knowledge of prefill unchanged, and the covariance does not grow along unobserved directions; its
    diagonal is capped in any case.

    Steps can be slow by accident, but not fast. An implausibly slow step is clipped to a plausible error. A streak of
    them means that the device is slower, and rescales all coefficients. An implausibly fast step means that the device
    is faster, or that uncertain coefficients of the step's kind of work are too high. At the start, a step that is
    faster than its work can explain sets the scale instead of the steps before it.

    `measured` limits extrapolation.
    """

    def __init__(self) -> None:
        """For an unknown device: the first measured step sets the scale of all coefficients."""
        self._begin(H200_LLAMA_8B)
        self._start: list[tuple[StepWork, int, float]] | None = []
        self.measured = MeasuredWork()

    @classmethod
    def from_coefficients(cls, coefficients: CostCoefficients) -> Self:
        """A model with known coefficients. It still learns from observed steps."""
        model = cls()
        model._begin(coefficients)
        model._start = None
        model.measured = MeasuredWork(known=True)
        return model

    def _begin(self, coefficients: CostCoefficients) -> None:
        self._ns: list[float] = list(astuple(coefficients))
        self._units = [value or fallback for value, fallback in zip(self._ns, astuple(H200_LLAMA_8B), strict=True)]
        self._covariance = _prior_covariance()
        self._slow_errors: list[float] = []

    @property
    def coefficients(self) -> CostCoefficients:
        return CostCoefficients(*self._ns)

    def predict_ns(self, work: StepWork) -> int:
        """The predicted time of a step with this work. Monotonic in every part of the work."""
        return int(self._predict(work))

    def _predict(self, work: StepWork) -> float:
        step, token, context_token, pair = self._ns
        return step + token * work.tokens + context_token * work.context_tokens + pair * work.prefill_pairs

    def observe(self, work: StepWork, elapsed_ns: int) -> None:
        """Learn from a step that took `elapsed_ns`. Zero, from a coarse clock, is ignored."""
        if elapsed_ns <= 0:
            return
        self.measured.observe(work.tokens, work.prefill_pairs, elapsed_ns)
        if self._start is None or not self._begins(self._start, work, elapsed_ns):
            self._observe(work, elapsed_ns)

    def _begins(self, start: list[tuple[StepWork, int, float]], work: StepWork, elapsed_ns: int) -> bool:
        """Whether this step sets the scale. The first one does. A step that is far faster than those before it shows
        that they were slow by accident and sets it again; plausible ones among them are then learnt from again."""
        scale = elapsed_ns / H200_LLAMA_8B.predict_ns(work)
        start.append((work, elapsed_ns, scale))
        if len(start) == START_STEPS:
            self._start = None
        if len(start) > 1 and START_SPREAD * scale >= min(earlier_scale for _, _, earlier_scale in start[:-1]):
            return False
        self._begin(CostCoefficients(*[scale * value for value in astuple(H200_LLAMA_8B)]))
        for earlier, earlier_ns, earlier_scale in start[:-1]:
            if earlier_scale <= START_SPREAD * scale:
                self._observe(earlier, earlier_ns)
        return True

    def _observe(self, work: StepWork, elapsed_ns: int) -> None:
        predicted_ns = max(self._predict(work), 1.0)
        step, token, context_token, pair = self._units
        features = (
            step / predicted_ns,
            token * work.tokens / predicted_ns,
            context_token * work.context_tokens / predicted_ns,
            pair * work.prefill_pairs / predicted_ns,
        )
        self._learn(features, elapsed_ns / predicted_ns - 1.0)

    def _learn(self, features: tuple[float, float, float, float], error: float) -> None:
        """One update of recursive least squares: `error` is relative to the prediction and linear in `features`."""
        f0, f1, f2, f3 = features
        covariance = self._covariance
        a0, a1, a2, a3 = along = [r0 * f0 + r1 * f1 + r2 * f2 + r3 * f3 for r0, r1, r2, r3 in covariance]
        known = a0 * f0 + a1 * f1 + a2 * f2 + a3 * f3
        if not known > 0.0:  # lost to rounding, after steps that differ by ten orders of magnitude
            self._covariance = _prior_covariance()
            return
        variance = known / MEMORY
        limit = PLAUSIBLE_DEVIATIONS * sqrt(variance + NOISE_VARIANCE)
        if error > limit:
            self._slow_errors.append(error)
        elif self._slow_errors:
            self._slow_errors = []
        if error < -max(limit, 0.5):
            self._speed_up(features, max(error, -0.9))
            return
        if len(self._slow_errors) == SLOW_STREAK:
            self._rescale([1.0 + min(self._slow_errors)] * 4)
            return
        weight = min(limit / error, 1.0) if error > 0.0 else 1.0
        gain = weight / MEMORY / (variance + NOISE_VARIANCE)
        shift = gain * error
        self._ns = [max(ns + unit * a * shift, 0.0) for ns, unit, a in zip(self._ns, self._units, along, strict=True)]
        # forgetting adds variance along the features, the measurement removes some: both in one update
        change = (1.0 / MEMORY - 1.0) / known - gain / MEMORY
        for row, a in zip(covariance, along, strict=True):
            scaled = change * a
            row[0] += scaled * a0
            row[1] += scaled * a1
            row[2] += scaled * a2
            row[3] += scaled * a3
        self._cap_covariance()

    def _speed_up(self, features: tuple[float, float, float, float], error: float) -> None:
        """Learn from an implausibly fast step. Either the device is faster, which scales all coefficients, or uncertain
        coefficients were too high. Applies the most likely mixture of both; no coefficient falls by more than `error`,
        the step's relative error."""
        known = SPEED_VARIANCE
        changes = []
        for ns, unit, feature, row in zip(self._ns, self._units, features, self._covariance, strict=True):
            along = sum(value * other for value, other in zip(row, features, strict=True))
            known += along * feature
            changes.append(SPEED_VARIANCE + along * unit / ns if ns > 0.0 else 0.0)
        self._rescale([max(1.0 + error * change / known, 1.0 + error) for change in changes])

    def _rescale(self, factors: Sequence[float]) -> None:
        """Multiply each coefficient by its factor, and increase the uncertainty of all."""
        self._ns = [factor * value for factor, value in zip(factors, self._ns, strict=True)]
        self._units = [factor * value for factor, value in zip(factors, self._units, strict=True)]
        self._covariance = [[DOUBT * value for value in row] for row in self._covariance]
        self._slow_errors = []
        self._cap_covariance()

    def _cap_covariance(self) -> None:
        """Shrink variances above the prior's. Scaling row and column alike keeps the matrix a covariance."""
        covariance = self._covariance
        for i in range(4):
            if covariance[i][i] > PRIOR_VARIANCE:
                shrink = sqrt(PRIOR_VARIANCE / covariance[i][i])
                covariance[i] = [value * shrink for value in covariance[i]]
                for row in covariance:
                    row[i] *= shrink

    def split_ns(self, starts: Sequence[int], tokens: Sequence[int], elapsed_ns: int) -> list[int]:
        """Divide a measured time among the rows of its step. No share is negative, and the sum is exactly `elapsed_ns`.

        The rows are given by columns, as for `step_work`. A row's weight is its marginal cost plus an equal part of the
        step's constant cost; weights are scaled to the measured time. Rounding the running sum keeps each share within
        1 ns of its exact value, like the largest remainder method, without a sort.
        """
        assert elapsed_ns >= 0
        if not starts:
            assert elapsed_ns == 0, "there is no row to carry the time"
            return []
        step, token, context_token, pair = self._ns
        base = step / len(starts)
        decode = base + token + context_token  # most rows have one token, so no pairs
        weights = [
            decode + context_token * start
            if count == 1
            else base + token * count + context_token * (start + count) + pair * row_work(start, count).prefill_pairs
            for start, count in zip(starts, tokens, strict=True)
        ]
        ends = list(accumulate(weights))
        if ends[-1] < _SMALLEST_TOTAL_NS:
            ends = list(accumulate([1.0] * len(starts)))
        scale = elapsed_ns / ends[-1]
        bounds = list(map(int, map(scale.__mul__, ends)))
        last = len(bounds) - 1
        bounds[last] = elapsed_ns
        while last and bounds[last - 1] > elapsed_ns:  # a float's rounding can carry the end past the time
            last -= 1
            bounds[last] = elapsed_ns
        return list(map(sub, bounds, [0, *bounds[:-1]]))

    def token_budget(self, target_ns: int, decode: StepWork, *, low: int, high: int, start: int = 0) -> int:
        """The tokens of prefill from position `start` on that fit, with the work `decode`, into a step of `target_ns`.

        Clamped to `low` and `high`: `low` even if the decode work alone takes longer.
        """
        tokens = self.chunk_within(target_ns - self._predict(decode), start, high=high)
        return max(low, tokens)

    def chunk_within(self, spare_ns: float, start: int, *, high: int) -> int:
        """The tokens of a prompt from position `start` on that add at most `spare_ns` to a step, at most `high`."""
        _, token, context_token, pair = self._ns
        spare_ns -= context_token * start
        if spare_ns <= 0.0:
            return 0
        # the larger root of quadratic * t^2 + linear * t = spare_ns, in the form that allows quadratic = 0
        quadratic = pair / 2
        linear = token + context_token + pair * (start + 0.5)
        divisor = linear + sqrt(linear * linear + 4 * quadratic * spare_ns)
        if divisor * high <= 2 * spare_ns:
            return high
        return min(high, int(2 * spare_ns / divisor))

    def row_ns(self, start: int, tokens: int) -> float:
        """The time that a row adds to a step."""
        return self._predict(row_work(start, tokens)) - self._ns[0]


def _prior_covariance() -> list[list[float]]:
    return [[PRIOR_VARIANCE if i == j else 0.0 for j in range(4)] for i in range(4)]
