"""Runs as tables in Markdown."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.peers.parts import Asked
from benchmarks.peers.results import OWN, SHARED, Run, gain, median, ratio
from benchmarks.peers.systems import LLAMA_CPP, TURNPIKE

PREFIX_GAIN = 3.5
"""Asked of output tokens a second with one prefix, over those with own ones."""
FILE_TTFT, FILE_MEMORY = 0.6, 0.5
"""Asked on the file of SmolLM2: at most these shares of llama.cpp's time to first token, and of its memory."""


def describe(runs: Sequence[Run], asked: Sequence[Asked]) -> Iterator[str]:
    """The lines of one part's runs."""
    yield f"## {runs[0].title}"
    yield ""
    for run in runs:
        rates = ", ".join(f"{rate:.0f} ({rows} rows)" for rows, rate in run.limits.matmul_gflop_s.items())
        limits = f"read {run.limits.read_gb_s:.1f} GB/s, bf16 matmul {rates} GFLOP/s"
        yield f"{run.when}, {run.processor}, {run.limits.threads} threads: {limits}."
        for name, reason in run.left_out.items():
            yield f"{name} left out: {reason}"
    names = list(dict.fromkeys(each.contestant for run in runs for each in run.samples))
    levels = sorted({each.level for run in runs for each in run.samples})
    yield ""
    if runs[0].part == "prefix":
        yield from _prefixes(runs, names, levels)
    else:
        yield from _figures(runs, names, levels)
        yield from _ratios(runs, names, levels, asked)
    yield from _memory(runs, names)


def _figures(runs: Sequence[Run], names: Sequence[str], levels: Sequence[int]) -> Iterator[str]:
    columns = ("c", "server", "output tok/s", "total tok/s", "TTFT p50 ms", "p95 ms", "TPOT p50 ms")
    yield from _head(*columns, "of read rate", "of matmul rate", "failed")
    for level in levels:
        for name in names:
            if (found := median(runs, name, level)) is None:
                continue
            cells = [str(level), name, f"{found.output_tokens_s:.1f}", f"{found.total_tokens_s:.0f}"]
            cells += [f"{found.ttft_p50_ms:.0f}", f"{found.ttft_p95_ms:.0f}", f"{found.tpot_p50_ms:.1f}"]
            cells += [_read_share(runs, name, level, found.tpot_p50_ms), _matmul_share(runs, found.total_tokens_s)]
            yield f"| {' | '.join([*cells, str(found.failed)])} |"
    yield ""


def _read_share(runs: Sequence[Run], name: str, level: int, tpot_ms: float) -> str:
    """Of what memory gives, while one request decodes; says nothing of more."""
    size = runs[0].weight_bytes.get(name)
    if level != 1 or size is None or tpot_ms == 0:
        return ""
    return f"{size / (tpot_ms / 1e3) / 1e9 / statistics.median(run.limits.read_gb_s for run in runs):.2f}"


def _matmul_share(runs: Sequence[Run], total_tokens_s: float) -> str:
    """Of the best bf16 rate, by two operations a weight and token."""
    rate = statistics.median(max(run.limits.matmul_gflop_s.values()) for run in runs)
    return f"{2 * runs[0].weights * total_tokens_s / 1e9 / rate:.2f}"


def _ratios(runs: Sequence[Run], names: Sequence[str], levels: Sequence[int], asked: Sequence[Asked]) -> Iterator[str]:
    bounds = {(each.ours, each.theirs, each.level): each.ratio for each in asked}
    pairs = list(dict.fromkeys((ours, theirs) for ours, theirs, _ in bounds if {ours, theirs} <= set(names)))
    if not pairs:
        return
    yield from _head("c", "pair", "output tok/s", "asked", "TTFT p50")
    for level in levels:
        for ours, theirs in pairs:
            rate = ratio(runs, "output_tokens_s", ours, theirs, level)
            first = ratio(runs, "ttft_p50_ms", ours, theirs, level)
            if rate is None or first is None:
                continue
            bound = bounds.get((ours, theirs, level))
            wanted = "" if bound is None else f"{bound:.2f}: {'met' if rate >= bound else 'MISSED'}"
            yield f"| {level} | {ours} / {theirs} | {rate:.2f} | {wanted} | {first:.2f}{_first_token(runs, first)} |"
    yield ""


def _first_token(runs: Sequence[Run], share: float) -> str:
    if runs[0].part != "smollm2":
        return ""
    return f" (at most {FILE_TTFT}: {'met' if share <= FILE_TTFT else 'MISSED'})"


def _prefixes(runs: Sequence[Run], names: Sequence[str], levels: Sequence[int]) -> Iterator[str]:
    columns = ("own prefixes: output tok/s", "TTFT p50 ms", "one prefix: output tok/s", "TTFT p50 ms")
    yield from _head("server", *columns, "gain", "TTFT gain")
    for name in names:
        for level in levels:
            own, shared = median(runs, name, level, OWN), median(runs, name, level, SHARED)
            more = gain(runs, "output_tokens_s", name, level)
            later = gain(runs, "ttft_p50_ms", name, level)
            if own is None or shared is None or more is None or later is None:
                continue
            wanted = f" (asked {PREFIX_GAIN}: {'met' if more >= PREFIX_GAIN else 'MISSED'})" if name == TURNPIKE else ""
            cells = [name, f"{own.output_tokens_s:.0f}", f"{own.ttft_p50_ms:.0f}", f"{shared.output_tokens_s:.0f}"]
            yield f"| {' | '.join([*cells, f'{shared.ttft_p50_ms:.0f}', f'{more:.2f}{wanted}', f'{1 / later:.2f}'])} |"
    yield ""


def _memory(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    yield from _head("server", "start to first token s", "resident MiB at start", "after load", "share of llama.cpp's")
    loaded = {}
    for name in names:
        found = [each for run in runs for each in run.memory if each.contestant == name]
        loaded[name] = statistics.median(each.loaded_mib for each in found)
    for name in names:
        found = [each for run in runs for each in run.memory if each.contestant == name]
        start_s, idle = (statistics.median(getattr(each, key) for each in found) for key in ("start_s", "idle_mib"))
        share = ""
        if LLAMA_CPP in loaded and name != LLAMA_CPP:
            part = loaded[name] / loaded[LLAMA_CPP]
            share = f"{part:.2f}"
            if runs[0].part == "smollm2":
                share += f" (at most {FILE_MEMORY}: {'met' if part <= FILE_MEMORY else 'MISSED'})"
        yield f"| {name} | {start_s:.1f} | {idle:.0f} | {loaded[name]:.0f} | {share} |"
    yield ""


def _head(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
