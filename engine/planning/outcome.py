"""The result of one simulated window."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from engine.planning.step_features import MAX_OUTSIDE, Excess
from engine.simulation.fleet_shape import RefusedRequest, Served


@dataclass(frozen=True, slots=True)
class ClassOutcome:
    """One class. `requests`: with the refused ones. Latencies are None where no request of the class was served."""

    name: str
    requests: int
    refused: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    tpot_p50_ms: float | None
    tpot_p99_ms: float | None

    @property
    def refused_share(self) -> float:
        return self.refused / self.requests if self.requests else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The service of `replicas` in a window of `seconds`. Tokens are of requests that arrived in it.

    `too_long`: requests that no replica can serve. `busy_share`: of the replicas' time. `peak_kv_share`: of the fullest
    replica's blocks. `least_ns`: the theoretical least time of the steps that took `busy_ns`. `excesses`: work outside
    the fitted range. `stopped`: the run was ended early, as it missed a target for certain.
    """

    replicas: int
    seconds: float
    classes: tuple[ClassOutcome, ...]
    prompt_tokens: int
    cached_tokens: int
    answer_tokens: int
    too_long: int
    preemptions: int
    peak_kv_share: float
    busy_share: float
    busy_ns: int
    least_ns: float
    steps: int
    excesses: tuple[Excess, ...] = ()
    stopped: bool = False

    @property
    def answer_tokens_s(self) -> float:
        return self.answer_tokens / self.seconds

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self.classes)

    @property
    def outside(self) -> tuple[Excess, ...]:
        """Work outside the fitted range in more than `MAX_OUTSIDE` of the steps: the figures are not to be used."""
        return tuple(each for each in self.excesses if each.share > MAX_OUTSIDE)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed; None of none."""
    if not values:
        return None
    return sorted(values)[max(ceil(share * len(values)), 1) - 1]


def class_outcomes(
    served: Sequence[Served], refused: Sequence[RefusedRequest], names: Sequence[str]
) -> tuple[ClassOutcome, ...]:
    """Of each class in `names`."""
    outcomes = []
    for name in names:
        mine = [each for each in served if each.service_class == name]
        ttft_ms = [each.ttft_ns / 1e6 for each in mine]
        tpot_ms = [each.token_ns / 1e6 for each in mine if each.answer_tokens > 1]
        turned_away = sum(each.service_class == name for each in refused)
        outcomes.append(
            ClassOutcome(
                name,
                len(mine) + turned_away,
                turned_away,
                percentile(ttft_ms, 0.5),
                percentile(ttft_ms, 0.99),
                percentile(tpot_ms, 0.5),
                percentile(tpot_ms, 0.99),
            )
        )
    return tuple(outcomes)
