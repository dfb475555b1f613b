"""Compares two runs."""

from collections.abc import Iterator, Mapping

from gateway.tools.bench.report import Report


def compare(before: Mapping[str, Report], after: Mapping[str, Report]) -> Iterator[tuple[str, str, float, float]]:
    """(load, figure, before, after) of the figures that both runs have, by load."""
    for load in before:
        if load in after:
            one, other = _figures(before[load]), _figures(after[load])
            for name, value in one.items():
                second = other[name]
                if value is not None and second is not None:
                    yield load, name, value, second


def _figures(report: Report) -> dict[str, float | None]:
    return {
        "requests/s": report.requests_per_s,
        "output tokens/s": report.output_tokens_per_s,
        "goodput, requests/s": report.goodput_per_s,
        "attainment": report.attainment,
        "first token p50, ms": report.ttft_ms.p50,
        "first token p99, ms": report.ttft_ms.p99,
        "per later token p50, ms": report.tpot_ms.p50,
        "per later token p99, ms": report.tpot_ms.p99,
        "whole answer p50, ms": report.total_ms.p50,
        "whole answer p99, ms": report.total_ms.p99,
    }
