"""A plan as text."""

from collections.abc import Iterator, Sequence

from engine.planning.origin import Figure, Origin
from engine.planning.outcome import ClassOutcome, Outcome
from engine.planning.plan import Plan
from gateway.planning.questions import Asked, Inputs
from gateway.planning.report_json import origin_of

_HEADINGS = ("class", "requests", "refused", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99")


def describe(inputs: Inputs, asked: Asked, plan: Plan, *, sums: bool) -> Iterator[str]:
    """The lines of a plan. `sums`: with the arithmetic step by step."""
    origin = origin_of(inputs)
    device = inputs.hardware.name if inputs.fit is None else inputs.fit.machine.name
    ranks = f", {plan.question.devices} devices each" if plan.question.devices > 1 else ""
    how = "as stated" if inputs.replicas else f"the fewest that meet the targets, {origin}"
    yield f"{plan.replicas} replicas of {device}{ranks} ({how}); weights {_format(inputs)}"
    yield f"step times: {_times(inputs)}"
    if sums:
        yield from ("", "By hand, for a mean request of the busiest hour:", *describe_sums(asked.sums))
    hour = plan.hours[0]
    yield ""
    yield f"The busiest hour ({hour.played.hour}:00), {_window(hour.outcome)}, {origin}:"
    yield from _class_table(hour.outcome)
    yield _load_line(hour.outcome)
    for each in plan.hours[1:]:
        hours = ", ".join(str(number) for number in each.played.stands_for)
        yield ""
        yield f"Hour {each.played.hour} for the hours {hours}, {_window(each.outcome)}, {origin}:"
        yield from _class_table(each.outcome)
    yield from ("", *_day(inputs, plan, origin))
    yield from ("", *_knee(plan))
    for remark in asked.remarks:
        yield f"Note: {remark}."


def describe_sums(sums: Sequence[Figure]) -> Iterator[str]:
    """A line for each figure, with its origin and how it comes about."""
    width = max(len(each.name) for each in sums)
    for each in sums:
        value = f"{each.value:,.0f}" if each.value >= 100 or each.value == int(each.value) else f"{each.value:.2f}"
        yield f"  {each.name:<{width}}  {value:>14} {each.unit:<16} {each.origin:<9} {each.how}".rstrip()


def compare(named: Sequence[tuple[str, Inputs, Plan]]) -> Iterator[str]:
    """Plans side by side: a column each."""
    rows: list[tuple[str, list[str]]] = [
        ("replicas", [str(plan.replicas) for _, _, plan in named]),
        ("devices", [str(plan.replicas * plan.question.devices) for _, _, plan in named]),
        ("blocks a replica", [f"{plan.question.deployment.num_blocks:,}" for _, _, plan in named]),
        ("answer tokens/s", [f"{plan.busiest.answer_tokens_s:,.0f}" for _, _, plan in named]),
        ("busy", [f"{plan.busiest.busy_share:.0%}" for _, _, plan in named]),
        ("KV peak", [f"{plan.busiest.peak_kv_share:.0%}" for _, _, plan in named]),
        ("time over least", [f"{plan.time_over_least:.2f} x" for _, _, plan in named]),
    ]
    for name in dict.fromkeys(each.name for _, _, plan in named for each in plan.busiest.classes):
        found = [next((each for each in plan.busiest.classes if each.name == name), None) for _, _, plan in named]
        rows.append((f"{name} TTFT p99", [_ms(None if each is None else each.ttft_p99_ms) for each in found]))
        rows.append((f"{name} TPOT p99", [_ms(None if each is None else each.tpot_p99_ms) for each in found]))
        rows.append((f"{name} refused", ["-" if each is None else f"{each.refused_share:.2%}" for each in found]))
    if all(plan.costs is not None for _, _, plan in named):
        rows.append(("$ a day", [f"{plan.costs.day:,.2f}" for _, _, plan in named if plan.costs]))
        rows.append(("$ / M answer tokens", [f"{plan.costs.million_answer:.4f}" for _, _, plan in named if plan.costs]))
    rows.append(("knee", [_short_knee(plan) for _, _, plan in named]))
    first = max(len(name) for name, _ in rows)
    widths = [max(len(title), *(len(cells[i]) for _, cells in rows)) for i, (title, _, _) in enumerate(named)]
    yield "  ".join(
        ["".ljust(first), *(title.rjust(width) for (title, _, _), width in zip(named, widths, strict=True))]
    )
    for name, cells in rows:
        yield "  ".join([name.ljust(first), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])


def _format(inputs: Inputs) -> str:
    if inputs.fit is not None:
        return f"as measured ({inputs.fit.machine.model})"
    return ("in 16 bits" if inputs.quantize == "none" else f"in {inputs.quantize}") + (
        "" if inputs.kv_dtype == "auto" else f", KV in {inputs.kv_dtype}"
    )


def _times(inputs: Inputs) -> str:
    if inputs.fit is None:
        return f"{Origin.ASSUMED}, a roofline of {inputs.hardware.name} at shares of its nominal rates, not measured"
    fit = inputs.fit.fit
    most = ", ".join(f"{name} {value:,}" for name, value in fit.times.range.most._asdict().items())
    return (
        f"{Origin.FITTED} to {fit.steps:,} steps, median error {fit.median_error:.1%}, p90 {fit.p90_error:.1%}; "
        f"within {most}"
    )


def _window(outcome: Outcome) -> str:
    of = "" if outcome.replicas == 1 else f" on {outcome.replicas} replicas"
    return f"{outcome.seconds:.0f} s played{of}"


def _class_table(outcome: Outcome) -> Iterator[str]:
    yield "  " + "".join(heading.rjust(11) if place else heading.ljust(12) for place, heading in enumerate(_HEADINGS))
    for each in outcome.classes:
        yield "  " + _class_line(each, withheld=bool(outcome.outside))
    for excess in outcome.outside:
        yield f"  outside the fitted range, so no times are given: {excess}"
    if outcome.too_long:
        yield f"  {outcome.too_long} of the refused prompts are longer than their class's window"


def _class_line(each: ClassOutcome, *, withheld: bool) -> str:
    times = (each.ttft_p50_ms, each.ttft_p99_ms, each.tpot_p50_ms, each.tpot_p99_ms)
    cells = [f"{each.requests}", f"{each.refused_share:.2%}", *("-" if withheld else _ms(time) for time in times)]
    return each.name.ljust(12) + "".join(cell.rjust(11) for cell in cells)


def _load_line(outcome: Outcome) -> str:
    hits = outcome.cached_tokens / max(outcome.prompt_tokens, 1)
    return (
        f"  {outcome.answer_tokens_s:,.0f} answer tokens/s; replicas compute {outcome.busy_share:.0%} of the time; "
        f"KV at most {outcome.peak_kv_share:.0%}; {outcome.preemptions} preemptions; {hits:.0%} of prompt tokens cached"
    )


def _day(inputs: Inputs, plan: Plan, origin: Origin) -> Iterator[str]:
    day, costs = plan.day, plan.costs
    yield (
        f"All {day.hours:.0f} hours, {origin}: {day.requests:,.0f} requests, {day.prompt_tokens / 1e6:,.1f} M prompt "
        f"tokens ({day.cached_tokens / max(day.prompt_tokens, 1):.0%} cached), "
        f"{day.answer_tokens / 1e6:,.1f} M answer tokens"
    )
    yield (
        f"Steps take {plan.time_over_least:.2f} x their theoretical least, weights and KV read once a step at the full "
        f"bandwidth ({inputs.hardware.origin})"
    )
    if costs is None:
        yield "Cost: state --device-price, dollars per hour of a device"
        return
    yield (
        f"Cost ({Origin.STATED} price): ${costs.day:,.2f}, ${costs.million_answer:.4f} per million answer tokens, "
        f"${costs.million_tokens:.4f} per million of all; theoretical least ${costs.least_million_answer:.4f} "
        f"({costs.million_answer / costs.least_million_answer:.1f} x, with the time in which replicas are idle)"
    )
    if costs.margin is not None and costs.revenue is not None:
        yield f"Revenue at your prices ${costs.revenue:,.2f}, margin ${costs.margin:,.2f}"


def _knee(plan: Plan) -> Iterator[str]:
    yield "Load over the busiest hour's, TTFT p99 by class:"
    for step in plan.loads:
        cells = [
            f"{each.name} {'-' if step.outcome.outside else _ms(each.ttft_p99_ms)}, {each.refused_share:.1%} refused"
            for each in step.outcome.classes
        ]
        mark = "  <- knee" if plan.knee is not None and step.factor == plan.knee.first_bad else ""
        outside = "  (outside the fitted range)" if step.outcome.outside else ""
        yield f"  {step.factor:>5.2f} x  {'; '.join(cells)}{mark}{outside}"
    if plan.knee is not None:
        yield f"Breaks first: {plan.knee.breaks}"


def _short_knee(plan: Plan) -> str:
    if plan.knee is None:
        return "-"
    return f"> {plan.loads[-1].factor:g} x" if plan.knee.first_bad is None else f"{plan.knee.first_bad:g} x"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} ms" if value < 100 else f"{value:,.0f} ms"
