"""Runs as tables in Markdown."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.peers.parts import Asked
from benchmarks.peers.results import ADAPTED, CHATS, OWN, SHARED, Memory, Run, gain, median, ratio
from benchmarks.peers.systems import LLAMA_CPP, MIB, TURNPIKE, VLLM

READ_SHARE, MATMUL_SHARE = 0.8, 0.75
"""Asked of Turnpike's bf16 weights: of the bandwidth with one request, of the matmul rate from `LARGE_BATCH` on."""
LARGE_BATCH = 16
FIRST_TOKEN = {"smollm2": 0.6, "tenth": 1.0, "half": 1.0}
"""Asked by part: at most this share of each peer's time to first token."""
START_SECONDS = 5.0
"""Asked of Turnpike, from start to first token."""
PREFIX_GAIN = 3.5
"""Asked of output tokens a second with one prefix, over those with own ones."""
ADAPTED_SHARE = 0.95
"""Asked of output tokens a second with adapters, over those without."""
FILE_MEMORY = 0.5
"""Asked on the file of SmolLM2: at most this share of llama.cpp's memory."""
OVERHEAD_MIB = 400.0
"""Bound: resident memory apart from weights, keys and values is at most this."""


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
    elif any(each.kind == ADAPTED for run in runs for each in run.samples):
        yield from _adapters(runs, names, levels)
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
            cells.append(_read_share(runs, name, level, found.tpot_p50_ms))
            cells.append(_matmul_share(runs, name, level, found.total_tokens_s))
            yield f"| {' | '.join([*cells, str(found.failed)])} |"
    yield ""


def _read_share(runs: Sequence[Run], name: str, level: int, tpot_ms: float) -> str:
    """Of what memory gives, while one request decodes; says nothing of more."""
    size = runs[0].weight_bytes.get(name)
    if level != 1 or size is None or tpot_ms == 0:
        return ""
    share = size / (tpot_ms / 1e3) / 1e9 / statistics.median(run.limits.read_gb_s for run in runs)
    return _at_least(share, READ_SHARE if _bf16(runs, name) else None)


def _matmul_share(runs: Sequence[Run], name: str, level: int, total_tokens_s: float) -> str:
    """Of the best bf16 rate, by two operations a weight and token: of a prompt's tokens most need no head, so it is a
    little too much, for all servers alike."""
    rate = statistics.median(max(run.limits.matmul_gflop_s.values()) for run in runs)
    share = 2 * runs[0].weights * total_tokens_s / 1e9 / rate
    return _at_least(share, MATMUL_SHARE if _bf16(runs, name) and level >= LARGE_BATCH else None)


def _bf16(runs: Sequence[Run], name: str) -> bool:
    return name == TURNPIKE and runs[0].part != "smollm2"


def _at_least(value: float, bound: float | None) -> str:
    return f"{value:.2f}" + ("" if bound is None else f" (asked {bound}: {'met' if value >= bound else 'MISSED'})")


def _at_most(value: float, bound: float | None, digits: int = 2) -> str:
    verdict = "" if bound is None else f" (at most {bound:g}: {'met' if value <= bound else 'MISSED'})"
    return f"{value:.{digits}f}{verdict}"


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
            later = _at_most(first, FIRST_TOKEN.get(runs[0].part))
            yield f"| {level} | {ours} / {theirs} | {rate:.2f} | {wanted} | {later} |"
    yield ""


def _prefixes(runs: Sequence[Run], names: Sequence[str], levels: Sequence[int]) -> Iterator[str]:
    columns = ("own prefixes: output tok/s", "TTFT p50 ms", "one prefix: output tok/s", "TTFT p50 ms")
    yield from _head("server", *columns, "gain", "TTFT gain")
    for name in names:
        for level in levels:
            own, shared = median(runs, name, level, OWN), median(runs, name, level, SHARED)
            more = gain(runs, "output_tokens_s", name, level, (OWN, SHARED))
            later = gain(runs, "ttft_p50_ms", name, level, (OWN, SHARED))
            if own is None or shared is None or more is None or later is None:
                continue
            cells = [name, f"{own.output_tokens_s:.0f}", f"{own.ttft_p50_ms:.0f}", f"{shared.output_tokens_s:.0f}"]
            cells += [f"{shared.ttft_p50_ms:.0f}", _at_least(more, PREFIX_GAIN), f"{1 / later:.2f}"]
            yield f"| {' | '.join(cells)} |"
    yield ""


def _adapters(runs: Sequence[Run], names: Sequence[str], levels: Sequence[int]) -> Iterator[str]:
    yield from _head("c", "server", "base: output tok/s", "adapters: output tok/s", "of the base's", "over vLLM")
    for level in levels:
        for name in names:
            base, adapted = median(runs, name, level), median(runs, name, level, ADAPTED)
            kept = gain(runs, "output_tokens_s", name, level, (CHATS, ADAPTED))
            if base is None or adapted is None or kept is None:
                continue
            cells = [str(level), name, f"{base.output_tokens_s:.1f}", f"{adapted.output_tokens_s:.1f}"]
            cells.append(_at_least(kept, ADAPTED_SHARE if name == TURNPIKE else None))
            over = ratio(runs, "output_tokens_s", name, VLLM, level, ADAPTED) if name != VLLM else None
            cells.append("" if over is None else f"{over:.2f}")
            yield f"| {' | '.join(cells)} |"
    yield ""


def _memory(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    columns = ("resident MiB at start", "after load", "of it KV", "over weights and KV", "share of llama.cpp's")
    yield from _head("server", "start to first token s", *columns)
    found = {name: [each for run in runs for each in run.memory if each.contestant == name] for name in names}
    loaded = {name: statistics.median(each.loaded_mib for each in found[name]) for name in names}
    for name in names:
        ours = name.startswith(TURNPIKE)
        start_s = statistics.median(each.start_s for each in found[name])
        idle_mib = statistics.median(each.idle_mib for each in found[name])
        cells = [name, _at_most(start_s, START_SECONDS if ours else None, 1), f"{idle_mib:.0f}", f"{loaded[name]:.0f}"]
        cells += [*_own_memory(runs, found[name]), ""]
        if LLAMA_CPP in loaded and name != LLAMA_CPP:
            bound = FILE_MEMORY if runs[0].part == "smollm2" else None
            cells[-1] = _at_most(loaded[name] / loaded[LLAMA_CPP], bound)
        yield f"| {' | '.join(cells)} |"
    yield ""


def _own_memory(runs: Sequence[Run], memory: Sequence[Memory]) -> tuple[str, str]:
    """Keys and values, and what is neither they nor weights; empty where that is not known."""
    kv_mib = [each.kv_mib for each in memory if each.kv_mib is not None]
    kept = runs[0].kept_bytes.get(memory[0].contestant)
    if not kv_mib:
        return "", ""
    if kept is None:
        return f"{statistics.median(kv_mib):.0f}", ""
    others = [each.loaded_mib - each.kv_mib - kept / MIB for each in memory if each.kv_mib is not None]
    return f"{statistics.median(kv_mib):.0f}", _at_most(statistics.median(others), OVERHEAD_MIB, 0)


def _head(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
