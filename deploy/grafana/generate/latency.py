"""How long until the first token, and between tokens."""

from deploy.grafana.generate.panels import Dashboard, Form, Panel, PromQL, Row, Threshold
from deploy.grafana.generate.promql import (
    CLASS,
    CLASSES,
    DURATION,
    INSTANCES,
    LATELY,
    MODEL,
    MODELS,
    TIER,
    TPOT,
    TTFT,
    increase,
    most,
    named,
    of_class,
    of_tier,
    quantile,
    rate,
    total,
    within,
)

_TARGET = Threshold(0.4)


def _quantiles(
    title: str, histogram: str, meaning: str, bad: str, thresholds: tuple[Threshold, ...], runbook: str | None
) -> Row:
    """By class: the three quantiles, and the worst of them by model."""
    panels = [
        Panel(
            title=f"p{100 * q:.0f} by class",
            form=Form.LINES,
            unit="s",
            queries=(PromQL(quantile(q, histogram, TIER), named(TIER)),),
            meaning=meaning,
            bad=bad,
            runbook=runbook,
            width=6,
            thresholds=thresholds if q == 0.99 else (),
        )
        for q in (0.5, 0.95, 0.99)
    ]
    worst = Panel(
        title="p99 by model and class",
        form=Form.LINES,
        unit="s",
        queries=(PromQL(quantile(0.99, histogram, MODEL, TIER), named(MODEL, TIER)),),
        meaning=meaning,
        bad="one model far above the others of its size: its queue or its KV memory, see Engine.",
        width=6,
    )
    return Row(title, (*panels, worst))


_FIRST = _quantiles(
    "First token",
    TTFT,
    "Time from a request's last byte to its first token. Estimated between the edges of the histogram: the share "
    "within 400 ms below is exact.",
    "p99 of premium over 0.4 s. Few requests make it jump: look at how many there were.",
    (_TARGET,),
    "TurnpikePremiumFirstTokenSlow",
)
_EACH = _quantiles(
    "Each further token",
    TPOT,
    "Mean time of an answer's tokens after the first, one value for each choice.",
    "a slow rise with the load is batching; a jump is preemption, a hung step, or a machine that somebody else uses.",
    (),
    None,
)

_COUNTED = Row(
    "Counted, not estimated",
    (
        Panel(
            title="First tokens within 400 ms",
            form=Form.LINES,
            unit="percentunit",
            queries=(PromQL(within(TTFT, "0.4", TIER), named(TIER)),),
            meaning="The share of requests whose first token came within 400 ms.",
            bad="premium under 99 %.",
            runbook="TurnpikePremiumFirstTokenSlow",
            maximum=1,
        ),
        Panel(
            title="Answers that began",
            form=Form.LINES,
            unit="reqps",
            queries=(PromQL(total(rate(of_tier(f"{TTFT}_count")), TIER), named(TIER)),),
            meaning="How many first tokens the quantiles are made of.",
            bad="next to nothing: then quantiles mean nothing either.",
        ),
        Panel(
            title="Longest wait in the queue",
            form=Form.LINES,
            unit="s",
            queries=(PromQL(most(of_class("turnpike_class_queue_age_seconds"), CLASS), named(CLASS)),),
            meaning="How long the oldest waiting request of a class has waited, since it came or was last preempted.",
            bad="a straight rise: nothing is admitted. If nothing runs either, a step hangs.",
            runbook="TurnpikeQueueOld",
        ),
        Panel(
            title="First tokens by how long they took",
            form=Form.HEATMAP,
            unit="s",
            queries=(PromQL(total(increase(of_tier(f"{TTFT}_bucket"), LATELY), "le"), "{{le}}"),),
            meaning="All chosen classes and models together: two bands are two kinds of requests, such as cold and "
            "cached.",
            bad="a band that climbs.",
            width=12,
        ),
        Panel(
            title="Whole answers, p50 and p99",
            form=Form.LINES,
            unit="s",
            queries=tuple(PromQL(quantile(q, DURATION, TIER), f"{named(TIER)} p{100 * q:.0f}") for q in (0.5, 0.99)),
            meaning="From a request's last byte to its answer's last; long answers take long.",
            bad="a rise that the two above do not show: answers have become longer.",
            width=12,
        ),
    ),
)

DASHBOARD = Dashboard(
    slug="latency",
    title="Latency",
    question="How long until the first token, and between tokens, for each class and model?",
    rows=(_FIRST, _EACH, _COUNTED),
    variables=(INSTANCES, MODELS, CLASSES),
    refresh="10s",
    period="1h",
)
