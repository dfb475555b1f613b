"""Renders figures as lines that fit the terminal's width. Colours only repeat the text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

from gateway.tools.top.history import OF_LATE_S
from gateway.tools.top.sample import Estimate
from gateway.tools.top.view import OUTCOMES, ClassView, ModelView, View

SMALLEST = (80, 24)
KEYS = "q quit   p pause   1-9 model"
_BAR = 23
_OTHER_LINES = 15
"""Number of lines besides those of classes, which have two each."""
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Frame:
    """The content of a frame. `view`: None before the second sample. `trouble`: empty if the server answers."""

    url: str
    interval_s: float
    view: View | None
    chosen: int = 0
    paused: bool = False
    trouble: str = ""
    trouble_s: float = 0.0


def lines(frame: Frame, width: int, height: int) -> list[Text]:
    """At most `height` lines of at most `width` cells."""
    made = [_head(frame)]
    if frame.view is not None:
        made += _server(frame.view)
        if frame.view.models:
            chosen = min(frame.chosen, len(frame.view.models) - 1)
            made += _model(frame.view, chosen, most_classes=max(1, (height - _OTHER_LINES) // 2))
        if frame.trouble:
            for line in made[1:]:
                line.stylize("dim")
    made = [*made[: height - 2], Text(), Text(KEYS, "dim")]
    for line in made:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return made


def _head(frame: Frame) -> Text:
    view = frame.view
    version = f" {view.version}" if view is not None and view.version else ""
    return Text.assemble(
        (f"turnpike{version}", "bold"),
        f"  {frame.url}  ",
        ("PAUSED  ", "bold yellow") if frame.paused else "",
        _state(frame),
        "" if frame.trouble else (f"  every {frame.interval_s:g} s", "dim"),
    )


def _state(frame: Frame) -> tuple[str, str]:
    view = frame.view
    if frame.trouble:
        return f"NOT ANSWERING for {frame.trouble_s:.0f} s: {frame.trouble}", "bold red"
    if view is None:
        return "waiting for a second sample", ""
    if view.healthy == 0:
        return "ENGINE UNHEALTHY", "bold red"
    if view.ready == 0:
        return "NOT READY", "bold red"
    return "ready", "green"


def _server(view: View) -> Iterator[Text]:
    line = Text("requests/s ")
    for outcome, rate in zip(OUTCOMES, view.outcomes_per_s, strict=True):
        style = "bold red" if outcome == "failed" and rate else ""
        line.append(f"  {_number(rate)} {outcome.replace('_', ' ')}", style)
    yield line
    behind = f"{_number(view.backlog)} events behind ({_seconds(view.backlog_age_s)})"
    yield Text.assemble(
        "usage        ",
        (behind, "yellow" if view.failing_s else ""),
        ("  JOURNAL IN TROUBLE", "bold red") if view.journal_trouble else "  journal ok",
        ("  REDIS AWAY", "bold red") if view.breaker_open else "  limits ok",
        f"  {_number(view.holds)} holds",
    )
    memory = "-" if view.resident_bytes is None else f"{view.resident_bytes / _MIB:.0f} MiB"
    yield Text(f"process      {memory} resident  {_number(view.cpu_share)} cores busy")
    yield Text()


def _model(view: View, chosen: int, most_classes: int) -> Iterator[Text]:
    model = view.models[chosen]
    which = f" ({chosen + 1} of {len(view.models)})" if len(view.models) > 1 else ""
    yield Text.assemble(
        (model.name, "bold cyan"),
        which,
        f"  running {_number(model.running)}  waiting {_number(model.waiting)}  paused {_number(model.paused)}",
        f"  steps/s {_number(model.steps_per_s)}  preempted/s {_number(model.preempted_per_s)}",
    )
    yield Text(
        f"tokens/s     {_number(model.input_per_s)} in  {_number(model.output_per_s)} out"
        f"  {_percent(model.found)} of tokens found in the prefix cache"
    )
    yield Text(f"drafts       {_drafts(model)}")
    yield Text()
    yield from _classes(model.classes[:most_classes])
    yield Text()
    yield from _kv(model, model.classes[:most_classes])
    if len(model.classes) > most_classes:
        yield Text(f"and {len(model.classes) - most_classes} classes more: a taller terminal shows them", "dim")


def _drafts(model: ModelView) -> str:
    told = [f"{each.proposer} {_number(each.depth)} deep, {_percent(each.right)} right" for each in model.drafts]
    return "   ".join(told) or "none"


def _classes(classes: Sequence[ClassView]) -> Iterator[Text]:
    head = ("req/s", "in/s", "out/s", "run", "wait", "age", "TTFT p50", "p95", "TPOT p50", "gap99", "n")
    yield Text(f"milliseconds, of the last {OF_LATE_S:.0f} s".rjust(SMALLEST[0]), style="dim")
    yield Text(_row("class", head), style="dim")
    for each in classes:
        cells = (
            *map(_number, (each.requests_per_s, each.input_per_s, each.output_per_s, each.running, each.waiting)),
            _seconds(each.queue_age_s) if each.waiting else "-",
            *map(_milliseconds, (each.ttft.p50, each.ttft.p95, each.tpot.p50, each.gap.p99)),
            str(each.ttft.n),
        )
        yield Text(_row(each.name, cells))


def _row(name: str, cells: Sequence[str]) -> str:
    widths = (6, 7, 7, 5, 5, 6, 9, 7, 9, 7, 4)
    return f"{name[:8]:<8}" + "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def _kv(model: ModelView, classes: Sequence[ClassView]) -> Iterator[Text]:
    used = None if model.blocks is None or model.free is None else model.blocks - model.free
    yield Text(
        f"{f'KV, {_number(used)} of {_number(model.blocks)} blocks held':<34}"
        f"{'held':>7}{'reserved':>10}{'cached':>8}{'preempted/s':>13}{'shed/s':>8}",
        style="dim",
    )
    for each in classes:
        line = Text(f"{each.name[:8]:<8} ")
        line.append_text(_bar(each, model.blocks or 0))
        for value, width in ((each.held, 7), (each.reserved, 10), (each.cached, 8)):
            line.append(_percent(value / model.blocks if value is not None and model.blocks else None).rjust(width))
        line.append(_number(each.preempted_per_s).rjust(13) + _number(each.shed_per_s).rjust(8))
        yield line


def _bar(each: ClassView, blocks: float) -> Text:
    """A bar of all blocks: held by the class, reserved but not held, and cached."""
    bar, left = Text("["), _BAR
    for value, mark, style in ((each.held, "#", "green"), (each.reserved, "r", "yellow"), (each.cached, "c", "blue")):
        cells = min(left, round(_BAR * (value or 0) / blocks)) if blocks else 0
        bar.append(mark * cells, style=style)
        left -= cells
    bar.append("." * left, style="dim")
    bar.append("]")
    return bar


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == int(value):
        return _short(value)
    return f"{value:.1f}" if value < 100 else _short(value)


def _short(value: float) -> str:
    """At most five characters."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 10 * size:
            return f"{value / size:.0f}{unit}"
    return f"{value:.0f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    if value < 60:
        return f"{value:.1f}s" if value < 10 else f"{value:.0f}s"
    return f"{value / 60:.0f}m" if value < 3600 else f"{value / 3600:.0f}h"


def _milliseconds(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    value = estimate.value * 1e3
    text = f"{value:.1f}" if value < 10 else f"{value:.0f}"
    return f">{text}" if estimate.beyond else text
