"""Aggregates the outcomes of a load.

All figures are of one window after the warm-up, without selection bias. Latencies, errors and objectives are of
requests *due* in the window, whenever they end. Throughput is of requests that *end*, and tokens that *arrive*, in the
window.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway.tools.bench.outcome import FINISHED, UNFINISHED, Outcome
from gateway.tools.bench.quantiles import Quantiles, quantiles_ms

LATE_MS = 10
LATE_SHARE = 0.01
"""Share of requests sent more than `LATE_MS` late above which the generator is too slow."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Latency objectives; None: no objective."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def __bool__(self) -> bool:
        return self.ttft_ms is not None or self.tpot_ms is not None

    def met(self, outcome: Outcome) -> bool:
        """Whether a request met the objective. Errors and rejections do not; one token always meets `tpot_ms`."""
        if not outcome.finished or outcome.ttft_s is None:
            return False
        if self.ttft_ms is not None and outcome.ttft_s * 1e3 > self.ttft_ms:
            return False
        return self.tpot_ms is None or outcome.tpot_s is None or outcome.tpot_s * 1e3 <= self.tpot_ms


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one load. Latencies are of finished requests. `late_ms`: the generator's delay (None in a closed
    loop). `errors`: counts by kind, without 429s. `tokens_by`: how output tokens were counted: "usage", "chunks" or
    "both". `goodput_per_s`, `attainment`: requests per second that met the objective, and their share of all due and
    not stopped requests; None without an objective."""

    load: str
    seconds: float
    requests: int
    finished: int
    refused: int
    unfinished: int
    errors: Mapping[str, int]
    requests_per_s: float
    output_tokens_per_s: float
    input_tokens_per_s: float | None
    mean_input_tokens: float | None
    mean_output_tokens: float | None
    tokens_by: str
    ttft_ms: Quantiles
    tpot_ms: Quantiles
    gap_ms: Quantiles
    total_ms: Quantiles
    goodput_per_s: float | None
    attainment: float | None
    late_ms: Quantiles | None
    behind: bool


def summarise(
    load: str,
    outcomes: Iterable[Outcome],
    window_s: tuple[float, float],
    objective: Objective,
    *,
    scheduled: bool,
) -> Report:
    """`window_s`: start and end of the window. `scheduled`: whether requests had scheduled times."""
    from_s, to_s = window_s
    seconds = max(to_s - from_s, 1e-9)
    outcomes = list(outcomes)
    due = [each for each in outcomes if from_s <= each.due_s < to_s]
    done = [each for each in due if each.finished]
    ended = [each for each in outcomes if each.finished and from_s <= each.ended_s < to_s]
    unfinished = sum(each.ending == UNFINISHED for each in due)
    met = sum(map(objective.met, due))
    inputs = [each.prompt_tokens for each in ended if each.prompt_tokens is not None]
    late_s = [each.late_s for each in due]
    return Report(
        load=load,
        seconds=seconds,
        requests=len(due),
        finished=len(done),
        refused=sum(each.refused for each in due),
        unfinished=unfinished,
        errors=dict(
            Counter(each.ending for each in due if each.ending not in (FINISHED, UNFINISHED) and not each.refused)
        ),
        requests_per_s=len(ended) / seconds,
        output_tokens_per_s=sum(_tokens_between(each, from_s, to_s) for each in outcomes if each.finished) / seconds,
        input_tokens_per_s=sum(inputs) / seconds if inputs else None,
        mean_input_tokens=_mean([each.prompt_tokens for each in done if each.prompt_tokens is not None]),
        mean_output_tokens=_mean([each.output_tokens for each in done]),
        tokens_by=_tokens_by(done),
        ttft_ms=quantiles_ms([each.ttft_s for each in done if each.ttft_s is not None]),
        tpot_ms=quantiles_ms([each.tpot_s for each in done if each.tpot_s is not None]),
        gap_ms=quantiles_ms([gap_s for each in done for gap_s in each.gaps_s]),
        total_ms=quantiles_ms([each.total_s for each in done]),
        goodput_per_s=met / seconds if objective else None,
        attainment=met / (len(due) - unfinished) if objective and len(due) > unfinished else None,
        late_ms=quantiles_ms(late_s) if scheduled else None,
        behind=scheduled and sum(each * 1e3 > LATE_MS for each in late_s) > LATE_SHARE * len(late_s),
    )


def _tokens_between(outcome: Outcome, from_s: float, to_s: float) -> float:
    """Tokens that arrived in that time; a request's tokens are spread evenly over its pieces."""
    pieces = outcome.pieces_s
    if not pieces:
        return 0.0
    return outcome.output_tokens * (bisect_left(pieces, to_s) - bisect_left(pieces, from_s)) / len(pieces)


def _tokens_by(done: Sequence[Outcome]) -> str:
    stated = sum(each.usage_tokens is not None for each in done)
    if stated == len(done):
        return "usage"
    return "both" if stated else "chunks"


def _mean(values: Sequence[int]) -> float | None:
    return sum(values) / len(values) if values else None
