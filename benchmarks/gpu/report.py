"""The figures with the expected ones, and the machine and versions of the run."""

import json
import platform
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.gpu import names
from benchmarks.gpu.scale import Scale
from benchmarks.gpu.stage import Outcome

_LARGEST = "llama-3.1-8b"
_DECODE_FROM = (8, 8192)
"""Batch and context from which decode attention is expected to be limited by memory."""
_MOST_FEW_ROWS = 16
"""Rows up to which products with plain weights have a kernel of their own."""


@dataclass(frozen=True, slots=True)
class Row:
    """A ratio of two figures, or a figure, and the least that is expected of it. None where one is missing."""

    name: str
    figure: str
    ratio: float | None
    expected: float | None

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return "not measured"
        if self.expected is None:
            return ""
        return "as expected" if self.ratio >= self.expected else "BELOW"


class Figures:
    """Measured values, by stage and name."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self._values = {(each.stage, each.name): each for each in outcomes if each.status == "measured"}

    def value(self, stage: str, name: str) -> float | None:
        outcome = self._values.get((stage, name))
        return None if outcome is None else outcome.value

    def shown(self, stage: str, name: str) -> str:
        outcome = self._values.get((stage, name))
        return "" if outcome is None else f"{outcome.value:.4g} {outcome.unit}"


def rows_of(figures: Figures, scale: Scale) -> Iterator[Row]:
    """Every ratio of the run."""
    copy, matmul = figures.value(names.LIMITS, names.COPY), figures.value(names.LIMITS, names.MATMUL)
    for context in scale.decode_contexts:
        for batch in scale.decode_batches:
            name = names.decode(batch, context)
            bound = batch >= _DECODE_FROM[0] and context >= _DECODE_FROM[1]
            share = _over(figures.value(names.ATTENTION, name), copy)
            yield Row(f"{name}, of copy", figures.shown(names.ATTENTION, name), share, 0.80 if bound else None)
    for tokens in scale.extend_tokens:
        for earlier in (0, scale.extend_tokens[-1]):
            name = names.extend(tokens, earlier)
            share = _over(figures.value(names.ATTENTION, name), matmul)
            expected = 0.55 if tokens == 8192 else None
            yield Row(f"{name}, of matmul", figures.shown(names.ATTENTION, name), share, expected)
    yield from _rows_of_products(figures, scale)
    stage, dependent = names.DEPENDENT_LAUNCH, names.DEPENDENT
    gain = _over(figures.value(stage, dependent), figures.value(stage, names.ALONE))
    yield Row(f"{scale.models[0]}, {dependent}, over {names.ALONE}", figures.shown(stage, dependent), gain, None)
    for model in scale.models:
        yield from _rows_of_model(figures, model, copy, scale)


def _rows_of_products(figures: Figures, scale: Scale) -> Iterator[Row]:
    """Against the limits, and against the same product with plain numbers. Nothing is expected yet."""
    for kind in (names.PLAIN, names.FEW_ROWS, *names.QUANTISED):
        for rows in scale.product_rows:
            if kind == names.FEW_ROWS and rows > _MOST_FEW_ROWS:
                continue
            name, speed = names.product(kind, rows), names.speed(kind, rows)
            shown = figures.shown(names.PRODUCTS, name)
            limit = names.COPY if shown.endswith("GB/s") else names.MATMUL
            share = _over(figures.value(names.PRODUCTS, name), figures.value(names.LIMITS, limit))
            yield Row(f"{name}, of {limit}", shown, share, None)
            if kind != names.PLAIN:
                plain = figures.value(names.PRODUCTS, names.speed(names.PLAIN, rows))
                gain = _over(figures.value(names.PRODUCTS, speed), plain)
                yield Row(f"{name}, over {names.PLAIN}", shown, gain, None)


def _rows_of_model(figures: Figures, model: str, copy: float | None, scale: Scale) -> Iterator[Row]:
    ours, theirs = names.served(model), names.peer(model)
    alone = figures.value(ours, names.ALONE)
    most = _over(copy, figures.value(ours, names.WEIGHTS))
    shown = figures.shown(ours, names.ALONE)
    yield Row(f"{model}, alone, of copy rate / weight bytes", shown, _over(alone, most), 0.70)
    yield Row(f"{model}, alone, over transformers", shown, _over(alone, figures.value(theirs, names.PEER_ALONE)), None)
    for tokens in scale.ttft_tokens:
        name = names.ttft(tokens)
        yield Row(f"{model}, {name}, ms", figures.shown(ours, name), figures.value(ours, name), None)
    largest = model == _LARGEST
    saturated, shown = figures.value(ours, names.SATURATED), figures.shown(ours, names.SATURATED)
    yield Row(f"{model}, saturated, tok/s", shown, saturated, 6500 if largest else None)
    for name, expected in ((names.PEER_STATIC, 5.0 if largest else None), (names.PEER_CONTINUOUS, None)):
        value = figures.value(theirs, name)
        yield Row(f"{model}, saturated, over {name}", figures.shown(theirs, name), _over(saturated, value), expected)
    for name in (names.ALONE, names.SATURATED):
        for part in ("host", "device idle"):
            full = f"{name}: {part}"
            yield Row(f"{model}, {full}", figures.shown(ours, full), figures.value(ours, full), None)


def _over(value: float | None, limit: float | None) -> float | None:
    return None if value is None or not limit else value / limit


def table(rows: Sequence[Row]) -> str:
    width = max((len(row.name) for row in rows), default=0)
    lines = [f"{'':{width}}  {'figure':>18}  {'ratio':>8}  {'expected':>8}"]
    for row in rows:
        ratio = "-" if row.ratio is None else f"{row.ratio:.3g}"
        expected = "" if row.expected is None else f"{row.expected:.3g}"
        lines.append(f"{row.name:{width}}  {row.figure:>18}  {ratio:>8}  {expected:>8}  {row.verdict}".rstrip())
    return "\n".join(lines)


def surroundings(seed: int) -> dict[str, str]:
    """When, where and of what the figures are."""
    packages = {name: _version(name) for name in ("torch", "triton", "transformers", "numpy")}
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _output("git", "rev-parse", "HEAD"),
        "changed files": str(len(_output("git", "status", "--porcelain").splitlines())),
        "device": _output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "python": platform.python_version(),
        **packages,
        "seed": str(seed),
    }


def write(folder: Path, facts: dict[str, str], outcomes: Sequence[Outcome], rows: Sequence[Row]) -> None:
    """gpu.json with everything, gpu.txt with the table."""
    folder.mkdir(parents=True, exist_ok=True)
    everything = {
        "surroundings": facts,
        "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    # NaN is no JSON.
    text = json.dumps(everything, indent=1).replace(": NaN", ": null").replace(": Infinity", ": null")
    (folder / "gpu.json").write_text(text, encoding="utf-8")
    facts_text = "\n".join(f"{name}: {value}" for name, value in facts.items())
    (folder / "gpu.txt").write_text(f"{facts_text}\n\n{table(rows)}\n", encoding="utf-8")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _output(*command: str) -> str:
    """Output of a command; empty where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
