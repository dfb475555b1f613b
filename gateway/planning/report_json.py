"""A plan as JSON."""

from dataclasses import asdict
from typing import Any

from engine.planning.origin import Figure, Origin, weakest
from engine.planning.outcome import Outcome
from engine.planning.plan import Plan
from gateway.planning.questions import Asked, Inputs


def origin_of(inputs: Inputs) -> Origin:
    """The origin of all simulated figures: that of the step times."""
    return Origin.FITTED if inputs.fit else Origin.ASSUMED


def plan_json(inputs: Inputs, asked: Asked, plan: Plan) -> dict[str, Any]:
    """All numbers of a plan. `origins` has the origin of each part."""
    simulated = origin_of(inputs)
    priced = weakest(simulated, Origin.STATED)
    fit = inputs.fit
    return {
        "replicas": plan.replicas,
        "devices": plan.replicas * plan.question.devices,
        "tensor_parallel": plan.question.devices,
        "quantize": inputs.quantize,
        "kv_dtype": inputs.kv_dtype,
        "device": inputs.hardware.name if fit is None else fit.machine.name,
        "sums": [_figure(each) for each in asked.sums],
        "busiest_hour": plan.hours[0].played.hour,
        "hours": [
            {
                "hour": each.played.hour,
                "stands_for": list(each.played.stands_for),
                "warm_s": each.window.warm_s,
                "outcome": outcome_json(each.outcome),
            }
            for each in plan.hours
        ],
        "loads": [
            {
                "factor": each.factor,
                "outcome": outcome_json(each.outcome),
                "missed": [breach._asdict() for breach in each.missed],
            }
            for each in plan.loads
        ],
        "knee": None if plan.knee is None else asdict(plan.knee),
        "day": asdict(plan.day),
        "time_over_least": plan.time_over_least,
        "costs": None if plan.costs is None else asdict(plan.costs),
        "targets": {name: target._asdict() for name, target in plan.question.targets.items()},
        "fit": None
        if fit is None
        else {
            "steps": fit.fit.steps,
            "median_error": fit.fit.median_error,
            "p90_error": fit.fit.p90_error,
            "range": fit.fit.times.range.most._asdict(),
        },
        "origins": {
            "replicas": Origin.STATED if inputs.replicas else simulated,
            "hours": simulated,
            "loads": simulated,
            "day": simulated,
            "costs": priced,
            "targets": Origin.STATED,
            "time_over_least": weakest(simulated, inputs.hardware.origin),
        },
        "remarks": list(asked.remarks),
    }


def outcome_json(outcome: Outcome) -> dict[str, Any]:
    """An outcome; without latencies where its steps are outside the fitted range."""
    outside = [str(each) for each in outcome.outside]
    classes = []
    for each in outcome.classes:
        values = asdict(each) | {"refused_share": each.refused_share}
        if outside:
            values |= dict.fromkeys(("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"))
        classes.append(values)
    return {
        "replicas": outcome.replicas,
        "seconds": outcome.seconds,
        "answer_tokens_s": outcome.answer_tokens_s,
        "prompt_tokens": outcome.prompt_tokens,
        "cached_tokens": outcome.cached_tokens,
        "answer_tokens": outcome.answer_tokens,
        "preemptions": outcome.preemptions,
        "too_long": outcome.too_long,
        "peak_kv_share": outcome.peak_kv_share,
        "busy_share": outcome.busy_share,
        "classes": classes,
        "outside_fit": outside,
    }


def _figure(figure: Figure) -> dict[str, Any]:
    return figure._asdict()
