"""What a step costs: a linear model of its time, refit with each measured step, that also divides the time up.

The one truth about time. The token budget, the predicted wait, the simulator and the bill all ask it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate
from math import sqrt
from operator import sub
from typing import NamedTuple, Self

from engine.scheduling.measured_work import MeasuredWork

MEMORY = 0.998
"""What a measurement still weighs when the next one of its kind comes: the last 500 or so count."""
NOISE_VARIANCE = 0.1**2
"""Of a step's time, relative to its prediction: equal steps differ by about a tenth."""
PRIOR_VARIANCE = 10.0**2
"""Of a coefficient, relative to its first value, before anything is known; never exceeded later."""
PLAUSIBLE_DEVIATIONS = 3.0
SLOW_STREAK = 8
"""So many implausibly slow steps in a row are no accident."""
START_STEPS = 16
"""As many steps may show that those before them were slow by accident, and set the scale."""
START_SPREAD = 32.0
"""How far apart, as a factor, the times of steps can be, over those of the reference device, by what is in them."""
SPEED_VARIANCE = 1.0
"""Of a device's speed, relative, where it is found to have changed."""
DOUBT = 10.0
"""How much less certain the coefficients are, in variance, once the device has shown another speed."""
_SMALLEST_TOTAL_NS = 1e-9
"""Predicted step times below this are too small to divide by; the time is then split equally."""


class StepWork(NamedTuple):
    """What the time of a step depends on, summed over its rows. Additive: `total` of rows is the step's.

    `context_tokens` are the tokens whose KV a row reads. `prefill_pairs` are the (query, key) pairs of rows with
    more than one token; those of a one-token row are its `context_tokens`.
    """

    tokens: int
    context_tokens: int
    prefill_pairs: int
    rows: int


NO_WORK = StepWork(0, 0, 0, 0)


def row_work(start: int, tokens: int) -> StepWork:
    """A row that computes `tokens` tokens from position `start` on. Each sees those before it and itself.

    Pairs are counted as causal attention has them, tokens x mean context: cut into chunks, a prompt has as many.
    """
    pairs = tokens * start + tokens * (tokens + 1) // 2 if tokens > 1 else 0
    return StepWork(tokens, start + tokens, pairs, 1)


def total(works: Iterable[StepWork]) -> StepWork:
    """The work of a step that has these rows."""
    columns = tuple(zip(*works, strict=True))
    return StepWork(*map(sum, columns)) if columns else NO_WORK


def step_work(starts: Sequence[int], tokens: Sequence[int]) -> StepWork:
    """`total` of the `row_work` of rows that are given by columns, as each step needs it."""
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

    `step_ns` is what a step costs whatever is in it: launching it and reading the weights once. None is negative.
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
    """What a model costs on a device that reaches these rates: bytes over bandwidth, operations over throughput.

    An upper estimate, as it adds up what a good kernel overlaps.
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
    """Predicts a step's time, learns from measured ones, and divides a measured time among a step's rows.

    Recursive least squares on relative errors, so that a long step does not outweigh a short one, in units of the
    first coefficients, so that one variance fits all. Forgetting is directional (Kulhavy 1987): a step makes room
    for itself only along its own mix of work. Hours of decode leave what is known of prefill as it was, and the
    covariance does not grow along what is not observed; a cap on its diagonal bounds it in any case.

    A step can be slow by accident and not fast. An implausibly slow one counts as little as a plausible one; a streak
    of them shows that the device is slower, and rescales all coefficients. One that is implausibly fast shows that the
    device is faster, or that those coefficients are too high which are uncertain and which the step informs of. At the
    start, a step that is faster than what is in it can explain sets the scale instead of those before it.

    `measured` limits extrapolation.
    """

    def __init__(self) -> None:
        """For a device that is not known: the first measured step sets the scale of all coefficients."""
        self._begin(H200_LLAMA_8B)
        self._start: list[tuple[StepWork, int, float]] | None = []
        self.measured = MeasuredWork()

    @classmethod
    def from_coefficients(cls, coefficients: CostCoefficients) -> Self:
        """A model that is right from the start; it goes on learning where steps are observed."""
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
        """How long a step with this work takes. Does not fall when any part of the work grows."""
        return int(self._predict(work))

    def _predict(self, work: StepWork) -> float:
        step, token, context_token, pair = self._ns
        return step + token * work.tokens + context_token * work.context_tokens + pair * work.prefill_pairs

    def observe(self, work: StepWork, elapsed_ns: int) -> None:
        """Learn from a step that took `elapsed_ns`. A time of zero says nothing but that the clock is coarse."""
        if elapsed_ns <= 0:
            return
        self.measured.observe(work.tokens, work.prefill_pairs, elapsed_ns)
        if self._start is None or not self._begins(self._start, work, elapsed_ns):
            self._observe(work, elapsed_ns)

    def _begins(self, start: list[tuple[StepWork, int, float]], work: StepWork, elapsed_ns: int) -> bool:
        """Whether the scale is that of this step: the first, or one so much faster than those before it that they were
        slow by accident. What of them is not is learnt from again."""
        scale = elapsed_ns / H200_LLAMA_8B.predict_ns(work)
        start.append((work, elapsed_ns, scale))
        if len(start) == START_STEPS:
            self._start = None
        if len(start) > 1 and START_SPREAD * scale >= min(each[2] for each in start[:-1]):
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
        """One step of least squares: `error` relative to the prediction, `features` that which it is linear in."""
        f0, f1, f2, f3 = features
        covariance = self._covariance
        a0, a1, a2, a3 = along = [r0 * f0 + r1 * f1 + r2 * f2 + r3 * f3 for r0, r1, r2, r3 in covariance]
        known = a0 * f0 + a1 * f1 + a2 * f2 + a3 * f3
        if not known > 0.0:  # rounding has eaten it up, after steps that differ by ten orders of magnitude
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
        # the growth along the features to `variance`, less what the measurement takes away again, in one update
        change = (1.0 / MEMORY - 1.0) / known - gain / MEMORY
        for row, a in zip(covariance, along, strict=True):
            scaled = change * a
            row[0] += scaled * a0
            row[1] += scaled * a1
            row[2] += scaled * a2
            row[3] += scaled * a3
        self._cap_covariance()

    def _speed_up(self, features: tuple[float, float, float, float], error: float) -> None:
        """A step was implausibly fast: because the device is faster, which is true of all coefficients, or because
        those were too high that are not certain yet. The least unlikely mixture of both, no coefficient falling by more
        than the step did."""
        known = SPEED_VARIANCE
        changes = []
        for ns, unit, feature, row in zip(self._ns, self._units, features, self._covariance, strict=True):
            along = sum(value * each for value, each in zip(row, features, strict=True))
            known += along * feature
            changes.append(SPEED_VARIANCE + along * unit / ns if ns > 0.0 else 0.0)
        self._rescale([max(1.0 + error * change / known, 1.0 + error) for change in changes])

    def _rescale(self, factors: Sequence[float]) -> None:
        """Each kind of work is faster or slower than it was by its factor, until it shows otherwise."""
        self._ns = [factor * value for factor, value in zip(factors, self._ns, strict=True)]
        self._units = [factor * value for factor, value in zip(factors, self._units, strict=True)]
        self._covariance = [[DOUBT * value for value in row] for row in self._covariance]
        self._slow_errors = []
        self._cap_covariance()

    def _cap_covariance(self) -> None:
        """Shrink what is less certain than at the start. Row and column alike, which keeps it a covariance."""
        covariance = self._covariance
        for i in range(4):
            if covariance[i][i] > PRIOR_VARIANCE:
                shrink = sqrt(PRIOR_VARIANCE / covariance[i][i])
                covariance[i] = [value * shrink for value in covariance[i]]
                for row in covariance:
                    row[i] *= shrink

    def split_ns(self, starts: Sequence[int], tokens: Sequence[int], elapsed_ns: int) -> list[int]:
        """Divide a measured time among the rows of its step: none negative, the sum is `elapsed_ns` exactly.

        The rows are given by columns, as for `step_work`. A row owns its marginal cost and an equal part of the step's
        own; all are scaled to the measured time. Rounded along their running sum, each share is within 1 ns of its
        exact value, as by largest remainder, without a sort.
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
        """How many tokens of prefill from position `start` on fit a step that does `decode` and takes `target_ns`.

        Between `low` and `high`, both included. `low` even if the decode work alone takes longer.
        """
        tokens = self.chunk_within(target_ns - self._predict(decode), start, high=high)
        return max(low, tokens)

    def chunk_within(self, spare_ns: float, start: int, *, high: int) -> int:
        """How many tokens of a prompt from position `start` on add at most `spare_ns` to a step, `high` at most."""
        _, token, context_token, pair = self._ns
        spare_ns -= context_token * start
        if spare_ns <= 0.0:
            return 0
        # the larger root of quadratic * t^2 + linear * t = spare_ns, in the form that stands quadratic = 0
        quadratic = pair / 2
        linear = token + context_token + pair * (start + 0.5)
        divisor = linear + sqrt(linear * linear + 4 * quadratic * spare_ns)
        if divisor * high <= 2 * spare_ns:
            return high
        return min(high, int(2 * spare_ns / divisor))

    def row_ns(self, start: int, tokens: int) -> float:
        """What a row adds to a step."""
        return self._predict(row_work(start, tokens)) - self._ns[0]


def _prior_covariance() -> list[list[float]]:
    return [[PRIOR_VARIANCE if i == j else 0.0 for j in range(4)] for i in range(4)]
