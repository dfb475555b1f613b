"""Times of steps: of a fit to measured steps, or of a roofline with assumed efficiencies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.planning.hardware import EFFICIENCY, Efficiency, Hardware
from engine.planning.model_sums import ModelSums
from engine.planning.origin import Origin
from engine.planning.step_features import Excess, MeasuredRange, StepFeatures, features_of
from engine.scheduling.cost import CostCoefficients, roofline_coefficients


class TimeModel(Protocol):
    """Predicts the time of a step."""

    @property
    def origin(self) -> Origin: ...

    @property
    def range(self) -> MeasuredRange | None:
        """The work that it was fitted on; None: it is no fit."""
        ...

    @property
    def prior(self) -> CostCoefficients:
        """The same for the schedulers' own cost model."""
        ...

    def predict_ns(self, features: StepFeatures) -> float:
        """The time of a step with this work, in nanoseconds."""
        ...


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """A step's time is `step_ns` and the sum of each feature times its coefficient, fitted on steps within `range`."""

    step_ns: float
    prefill_token_ns: float
    prefill_pair_ns: float
    decode_row_ns: float
    decode_context_ns: float
    range: MeasuredRange
    origin: Origin = Origin.FITTED

    def predict_ns(self, features: StepFeatures) -> float:
        tokens, pairs, rows, context = features
        return (
            self.step_ns
            + self.prefill_token_ns * tokens
            + self.prefill_pair_ns * pairs
            + self.decode_row_ns * rows
            + self.decode_context_ns * context
        )

    @property
    def prior(self) -> CostCoefficients:
        token_ns = self.prefill_token_ns or self.decode_row_ns
        return CostCoefficients(self.step_ns, token_ns, self.decode_context_ns, self.prefill_pair_ns)


@dataclass(frozen=True, slots=True)
class RooflineTimes:
    """Bytes over bandwidth or operations over throughput, whichever is more (roofline: Williams et al. 2009), at shares
    of the nominal rates that were measured elsewhere; with tensor parallelism, two all-reduces a layer."""

    sums: ModelSums
    hardware: Hardware
    fp8: bool = False
    tensor_parallel: int = 1
    efficiency: Efficiency = EFFICIENCY
    range: MeasuredRange | None = None
    origin: Origin = Origin.ASSUMED

    @property
    def _flop_s(self) -> float:
        return (self.hardware.fp8_flop_s if self.fp8 else None) or self.hardware.flop_s

    def predict_ns(self, features: StepFeatures) -> float:
        sums, device, share, ranks = self.sums, self.hardware, self.efficiency, self.tensor_parallel
        tokens = features.prefill_tokens + features.decode_rows
        products = max(
            sums.read_bytes(tokens) / (device.bytes_s * share.product_bytes),
            tokens * sums.token_flop / (self._flop_s * share.product_flop),
        )
        decode = features.decode_context * sums.kv_token_bytes / (device.bytes_s * share.attention_bytes)
        prefill = features.prefill_pairs * sums.pair_flop / (device.flop_s * share.attention_flop)
        fixed = 1e-6 * (share.step_us + share.layer_us * sums.layers)
        if ranks > 1:
            reduced = 2 * sums.layers * tokens * 2 * sums.hidden_size * 2 * (ranks - 1) / ranks / device.link_bytes_s
            fixed += 2 * sums.layers * 1e-6 * share.reduce_us + reduced
        return 1e9 * ((products + decode + prefill) / ranks + fixed)

    @property
    def prior(self) -> CostCoefficients:
        share, ranks = self.efficiency, self.tensor_parallel
        return roofline_coefficients(
            weight_bytes=self.sums.dense_bytes + self.sums.expert_bytes,
            kv_bytes_per_token=self.sums.kv_token_bytes,
            flops_per_token=self.sums.token_flop,
            flops_per_pair=self.sums.pair_flop,
            bytes_per_s=ranks * self.hardware.bytes_s * share.product_bytes,
            flops_per_s=ranks * self._flop_s * share.product_flop,
        )


@dataclass(frozen=True, slots=True)
class LeastTimes:
    """The theoretical least: weights and KV read once a step at the full bandwidth, or all operations at the full rate,
    whichever is more; on `tensor_parallel` devices."""

    sums: ModelSums
    hardware: Hardware
    fp8: bool = False
    tensor_parallel: int = 1

    def least_ns(self, features: StepFeatures) -> float:
        sums, device = self.sums, self.hardware
        tokens = features.prefill_tokens + features.decode_rows
        read = sums.read_bytes(tokens) + features.decode_context * sums.kv_token_bytes
        flop_s = (device.fp8_flop_s if self.fp8 else None) or device.flop_s
        flop = tokens * sums.token_flop + (features.prefill_pairs + features.decode_context) * sums.pair_flop
        return 1e9 * max(read / device.bytes_s, flop / flop_s) / self.tensor_parallel


class MeteredTimes:
    """The device of simulated replicas: `StepTimes` of a model of times. Counts its steps, those outside the fitted
    range, and their theoretical least time."""

    def __init__(self, model: TimeModel, least: LeastTimes) -> None:
        self._model, self._least, self._range = model, least, model.range
        self.steps = 0
        self.least_ns = 0.0
        self._outside: dict[str, tuple[int, int]] = {}

    def step_ns(self, starts: Sequence[int], tokens: Sequence[int]) -> float:
        features = features_of(starts, tokens)
        self.steps += 1
        self.least_ns += self._least.least_ns(features)
        if self._range is not None and (name := self._range.outside(features)) is not None:
            count, largest = self._outside.get(name, (0, 0))
            self._outside[name] = count + 1, max(largest, int(getattr(features, name)))
        return self._model.predict_ns(features)

    @property
    def excesses(self) -> tuple[Excess, ...]:
        """The features that were outside the fitted range, of any of the steps."""
        if self._range is None:
            return ()
        return tuple(
            Excess(name, count / self.steps, largest, int(getattr(self._range.most, name)))
            for name, (count, largest) in sorted(self._outside.items())
        )
