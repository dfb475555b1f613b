"""The planner against the truth: predicted and measured throughput and TTFT: `python -m benchmarks.plan`.

Loads SmolLM2, records the steps of one load of mixed lengths, and fits their times. Then it plays held-out loads for
real, open loop on the engine in this process: short and long prompts, long answers, shared prefixes, two classes, each
at several multiples of a base rate that is a share of the capacity that the fit gives. The same arrivals are predicted
by the simulated scheduler with the fitted times. The table has both, and the median and the worst relative error.

A load with steps outside the fitted range is marked, and does not count.

`--speed` measures the time in which a day of traffic for 16 replicas is planned instead; no model runs.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

from engine.catalog.catalog import fetch
from engine.config import EngineConfig
from engine.engine import Engine
from engine.planning.deployment import Deployment
from engine.planning.fitting import Fit, fit_steps
from engine.planning.hardware import DEVICES
from engine.planning.model_sums import ModelSums, place_model
from engine.planning.outcome import percentile
from engine.planning.plan import Question, make_plan
from engine.planning.runs import Runs
from engine.planning.search import replica_rate
from engine.planning.step_features import MAX_OUTSIDE
from engine.planning.step_times import LeastTimes, MeteredTimes, RooflineTimes
from engine.planning.targets import Target
from engine.planning.trace import TraceRow, TraceTraffic
from engine.planning.traffic import DescribedTraffic, Lengths, MeanLengths, Stream, Window
from engine.request import PREMIUM, STANDARD, ServiceClass
from engine.simulation.fleet import Fleet
from engine.workers.replica_choice import routing_policy
from gateway.config.settings import Settings
from gateway.planning.measuring import DueRequest, PlayedRequest, StepRecorder, calibration_load, play
from gateway.planning.model_config import read_model_config

MODEL = "model"
CLASSES = (PREMIUM, STANDARD)
SHARES = (0.25, 0.5, 0.75, 1.25)
"""Of the fitted capacity: 1 to 5 times the lowest."""


class Kind(NamedTuple):
    """A kind of load: mean tokens, and the part of the requests that are premium."""

    prompt: int
    answer: int
    prefix: int = 0
    premium: float = 0.0


KINDS = {
    "chat": Kind(96, 48),
    "documents": Kind(700, 24),
    "essays": Kind(48, 160),
    "shared prefix": Kind(64, 48, prefix=512),
    "two classes": Kind(200, 48, premium=0.3),
}


class Measures(NamedTuple):
    """Answer tokens per second until the last answer has ended, and TTFT in milliseconds."""

    tokens_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float


class Row(NamedTuple):
    """A load, measured and predicted. `outside`: its steps are outside the fitted range."""

    name: str
    requests: int
    measured: Measures
    predicted: Measures
    outside: bool


def draw(kind: Kind, rate: float, seconds: float, vocab_size: int, seed: int) -> tuple[list[DueRequest], TraceTraffic]:
    """A load, and the same as a trace."""
    due: list[DueRequest] = []
    rows: list[TraceRow] = []
    random, now_s = Random(seed), 0.0
    prefix = tuple(random.choices(range(3, vocab_size), k=kind.prefix))
    prompts, answers = Lengths(kind.prompt, 0.5, 4), Lengths(kind.answer, 0.5, 2)
    while (now_s := now_s + random.expovariate(rate)) < seconds or not due:
        own, answer = prompts.draw(random), answers.draw(random)
        service_class: ServiceClass = PREMIUM if random.random() < kind.premium else STANDARD
        tokens = (*prefix, *random.choices(range(3, vocab_size), k=own))
        due.append(DueRequest(now_s, tokens, answer, service_class, f"tenant {seed}"))
        group = "prefix" if prefix else ""
        rows.append(TraceRow(now_s, f"tenant {seed}", service_class.name, len(tokens), answer, group, len(prefix)))
    return due, TraceTraffic(tuple(rows))


def predict(deployment: Deployment, trace: TraceTraffic, seconds: float, seed: int) -> tuple[Measures, bool]:
    """Of the simulated scheduler, and whether too many steps are outside the fitted range."""
    sessions = trace.draw(
        Window(0, 0.0, max(seconds, trace.rows[-1].at_s) + 1), {each.name: each for each in deployment.classes}, seed
    )
    times = MeteredTimes(deployment.times, deployment.least)
    fleet = Fleet(deployment.shape(times), lambda random: routing_policy("predicted", random), seed)
    served = fleet.play(sessions)
    assert len(served) == len(trace.rows), "requests are lost"
    ends = [each.at_ns + each.ttft_ns + each.token_ns * (each.answer_tokens - 1) for each in served]
    outside = any(each.share > MAX_OUTSIDE for each in times.excesses)
    tokens = sum(each.answer_tokens for each in served)
    return _measures(tokens, max(ends) / 1e9, [each.ttft_ns / 1e6 for each in served]), outside


def _measured(played: Sequence[PlayedRequest]) -> Measures:
    tokens = sum(each.answer_tokens for each in played)
    end_s = max(each.at_s + each.total_s for each in played)
    return _measures(tokens, end_s, [1e3 * each.ttft_s for each in played])


def _measures(tokens: int, seconds: float, ttft_ms: Sequence[float]) -> Measures:
    p50, p99 = percentile(ttft_ms, 0.5), percentile(ttft_ms, 0.99)
    assert p50 is not None, "no request"
    assert p99 is not None, "no request"
    return Measures(tokens / seconds, p50, p99)


def calibrate(engine: Engine, seconds: float, rate: float) -> Fit:
    """Fit the steps of one load."""
    recorder = StepRecorder(engine, MODEL)
    asyncio.run(play(engine, calibration_load(engine.models[MODEL].vocab_size, 2048, seconds, rate, 0), MODEL))
    recorder.close()
    return fit_steps(recorder.samples)


def compare(path: Path, seconds: float, calibration_s: float, rate: float, kinds: Sequence[str]) -> list[Row]:
    """All kinds at all shares of the capacity."""
    config = EngineConfig()
    engine = Engine.load({MODEL: path}, config)
    vocab_size = engine.models[MODEL].vocab_size
    rows: list[Row] = []
    sums = ModelSums.of(read_model_config(str(path), Settings()))
    with engine:
        fit = calibrate(engine, calibration_s, rate)
        print(f"fit: {fit.steps} steps, median error {fit.median_error:.1%}, p90 {fit.p90_error:.1%}")
        print(f"     {fit.times}")
        sizes = config.scheduler
        deployment = Deployment(
            replicas=1,
            times=fit.times,
            least=LeastTimes(sums, DEVICES["h100"]),
            num_blocks=engine.stats()[MODEL].num_blocks,
            max_running=sizes.max_running,
            step_tokens=sizes.step_tokens,
            chunk_tokens=sizes.chunk_tokens,
            max_model_len=engine.models[MODEL].max_model_len,
            classes=CLASSES,
            max_wait_ms={},
            noise=fit.noise,
        )
        for name in kinds:
            kind = KINDS[name]
            lengths = MeanLengths(kind.prefix + kind.prompt, kind.prefix, kind.answer)
            capacity = replica_rate(deployment, lengths)[0]
            for number, share in enumerate(SHARES):
                due, trace = draw(kind, share * capacity, seconds, vocab_size, 100 * len(rows) + number + 1)
                predicted, outside = predict(deployment, trace, seconds, number)
                measured = _measured(asyncio.run(play(engine, due, MODEL)))
                rows.append(Row(f"{name}, {share / SHARES[0]:g} x", len(due), measured, predicted, outside))
                _print_row(rows[-1])
    return rows


def _print_row(row: Row) -> None:
    cells = [
        f"{measured:9.1f} {predicted:9.1f} {predicted / measured - 1:+7.0%}"
        for measured, predicted in zip(row.measured, row.predicted, strict=True)
    ]
    print(
        f"{row.name:<22} {row.requests:>5}  {'  '.join(cells)}{'  outside the fit' if row.outside else ''}", flush=True
    )


def summarise(rows: Sequence[Row]) -> None:
    """The median and the worst error of each measure, of loads within the fitted range."""
    within = [row for row in rows if not row.outside]
    print(f"\n{len(within)} of {len(rows)} loads within the fitted range")
    for place, name in enumerate(Measures._fields):
        errors = sorted(abs(row.predicted[place] / row.measured[place] - 1) for row in within)
        if errors:
            print(f"{name:<12} median error {errors[len(errors) // 2]:.1%}, worst {errors[-1]:.1%}")


def day_of_16() -> Question:
    """A day of sessions and documents that 16 replicas of Llama 3.1 8B on an H100 serve."""
    config = read_model_config(str(Path(__file__).parents[1] / "examples/plan/llama-3.1-8b.json"), Settings())
    sums, device = ModelSums.of(config), DEVICES["h100"]
    place = place_model(config, sums, device, max_model_len=16_384)
    hours = tuple(0.25 + 0.75 * max(0.0, 1 - abs(hour - 14) / 9) for hour in range(24))
    chat = Stream(
        tenant="chat",
        service_class="premium",
        rates=tuple(200 * share for share in hours),
        prompt=Lengths(150),
        answer=Lengths(200),
        prefix_tokens=600,
        turns=5,
        think_s=15,
    )
    documents = Stream(
        tenant="documents",
        service_class="standard",
        rates=tuple(60 * share for share in hours),
        prompt=Lengths(1500),
        answer=Lengths(250),
    )
    deployment = Deployment(
        replicas=16,
        times=RooflineTimes(sums, device),
        least=LeastTimes(sums, device),
        num_blocks=place.num_blocks,
        max_running=place.max_running,
        step_tokens=place.step_tokens,
        chunk_tokens=place.chunk_tokens,
        max_model_len=place.window,
        classes=CLASSES,
        max_wait_ms={"premium": 5000, "standard": 30_000},
    )
    targets = {"premium": Target(500, 50), "standard": Target(3000, 100)}
    return Question(
        deployment=deployment,
        traffic=DescribedTraffic((chat, documents)),
        targets=targets,
        replicas=16,
        device_price=2.5,
        devices=1,
    )


def plan_speed() -> None:
    """The time of a plan, with as many processes as cores."""
    started = time.perf_counter()
    with Runs() as runs:
        plan = make_plan(day_of_16(), runs)
    requests = sum(each.outcome.requests for each in plan.hours) + sum(each.outcome.requests for each in plan.loads[1:])
    seconds = time.perf_counter() - started
    print(f"{plan.replicas} replicas, {plan.day.requests:,.0f} requests a day: planned in {seconds:.1f} s")
    print(f"{requests:,} of them measured in {len(plan.hours)} hours and {len(plan.loads)} loads")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals of each load")
    parser.add_argument("--calibration-s", type=float, default=90.0, help="of arrivals of the load that is fitted")
    parser.add_argument("--rate", type=float, default=3.0, help="requests per second of that load, doubled halfway")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--model", type=Path, help="a checkpoint; default: smollm2 of the catalogue")
    parser.add_argument("--speed", action="store_true", help="time the plan of a day for 16 replicas")
    options = parser.parse_args()
    if options.speed:
        plan_speed()
        return
    path = options.model or fetch("smollm2", Settings().models_dir)
    columns = "tok/s measured, predicted, error; TTFT p50 ms; TTFT p99 ms"
    print(f"Load, requests, {columns}")
    summarise(compare(path, options.seconds, options.calibration_s, options.rate, options.kinds))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
