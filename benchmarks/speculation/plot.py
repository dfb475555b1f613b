"""Draws tokens a second against concurrency, with drafts off, always on, and as the controller decides."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

from benchmarks.speculation.modes import ON_DEPTH, Comparison, Mode

matplotlib.use("Agg")

from matplotlib import pyplot

_STYLES = {
    Mode.OFF: ("#8b949e", "--", "no drafts"),
    Mode.ON: ("#d29922", "--", f"always {ON_DEPTH} drafts"),
    Mode.CONTROLLER: ("#1f6feb", "-", "controller"),
}


def draw(curve: Mapping[int, Comparison], path: Path, title: str) -> None:
    """A PNG at `path`; `curve` by concurrency."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=130)
    for mode, (colour, line, label) in _STYLES.items():
        figures = [each.median(mode) for each in curve.values()]
        axes.plot(list(curve), figures, line, marker="o", color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(curve), [str(concurrency) for concurrency in curve])
    axes.set(xlabel="requests under way", ylabel="output tokens a second", title=title)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
