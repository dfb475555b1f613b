"""Reports as text and as JSON."""

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.errors import OperatorError
from gateway.tools.bench.quantiles import Quantiles, samples_needed
from gateway.tools.bench.report import LATE_MS, LATE_SHARE, Report

FORMAT = 1
_COLUMNS = ("mean", "p50", "p90", "p99", "max")


class ReportUnreadable(OperatorError):
    """The file is not from `turnpike bench --json`."""


def describe(report: Report) -> Iterator[str]:
    """The lines of one report."""
    counts = [f"{report.requests} requests", f"{report.finished} finished", f"{report.refused} refused (429)"]
    counts.append(f"{sum(report.errors.values())} failed")
    if report.unfinished:
        counts.append(f"{report.unfinished} broken off")
    yield f"{report.load}, {report.seconds:.3g} s measured: {', '.join(counts)}"
    for kind, count in sorted(report.errors.items(), key=lambda item: -item[1]):
        yield f"  {count} x {kind}"
    yield f"  {report.requests_per_s:.2f} requests/s, {_tokens(report)}"
    yield "  " + "milliseconds".ljust(20) + "".join(name.rjust(10) for name in _COLUMNS) + "samples".rjust(10)
    named = {
        "first token": report.ttft_ms,
        "per later token": report.tpot_ms,
        "between chunks": report.gap_ms,
        "whole answer": report.total_ms,
    }
    if report.late_ms is not None:
        named["sent late by"] = report.late_ms
    for name, quantiles in named.items():
        cells = "".join(_milliseconds(getattr(quantiles, column)).rjust(10) for column in _COLUMNS)
        yield f"  {name:<20}{cells}{quantiles.n:>10}"
    if report.goodput_per_s is not None:
        share = "-" if report.attainment is None else f"{report.attainment:.1%}"
        yield f"  goodput {report.goodput_per_s:.2f} requests/s within the objective, {share} of all"
    yield from _notes(report)


def _tokens(report: Report) -> str:
    by = {"usage": "by the server's usage", "chunks": "BY CHUNKS: the server sends no usage"}
    text = f"{report.output_tokens_per_s:.1f} output tokens/s ({by.get(report.tokens_by, 'by usage where it is sent')})"
    if report.input_tokens_per_s is not None:
        text += f", {report.input_tokens_per_s:.1f} input tokens/s"
    if report.mean_output_tokens is not None:
        inputs = "?" if report.mean_input_tokens is None else f"{report.mean_input_tokens:.0f}"
        text += f"; {inputs} in and {report.mean_output_tokens:.0f} out on average"
    return text


def _notes(report: Report) -> Iterator[str]:
    if 0 < report.ttft_ms.n < samples_needed(0.99):
        yield (
            f"  - where samples are too few: p50 from {samples_needed(0.5)}, p90 from {samples_needed(0.9)}, p99 from "
            + str(samples_needed(0.99))
        )
    if report.behind:
        yield (
            f"  THE GENERATOR WAS LATE: over {LATE_SHARE:.0%} of requests left more than {LATE_MS} ms after they were "
            "due. Latencies have that in them; give it a machine of its own, or a lower rate"
        )
    if report.tokens_by != "usage" and report.finished:
        yield "  a chunk may be several tokens: tokens are at least these, times per token at most"


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def write_json(path: Path, about: Mapping[str, Any], reports: Sequence[Report]) -> None:
    """
    Raises:
        OperatorError: the file cannot be written.
    """
    document = {"format": FORMAT, **about, "loads": [dataclasses.asdict(report) for report in reports]}
    try:
        path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise OperatorError(f"cannot write {path} ({error.strerror})") from error


def read_json(path: Path) -> dict[str, Report]:
    """The reports of a file, by load.

    Raises:
        ReportUnreadable: the file is missing or has another format.
    """
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != FORMAT:
            raise ReportUnreadable(f"{path} was written by another version of turnpike bench")
        return {each["load"]: _report(each) for each in document["loads"]}
    except OSError as error:
        raise ReportUnreadable(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise ReportUnreadable(f"{path} is not what turnpike bench --json writes") from None


def _report(stated: dict[str, Any]) -> Report:
    names = ("ttft_ms", "tpot_ms", "gap_ms", "total_ms", "late_ms")
    return Report(**stated | {name: stated[name] and Quantiles(**stated[name]) for name in names})
