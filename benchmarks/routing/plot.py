"""Draws a fit's report: quality against the share that goes to the large model."""

from pathlib import Path

import matplotlib

from gateway.routing.fitting.fit import FitReport

matplotlib.use("Agg")

from matplotlib import pyplot

_COLOURS = {"routed": "#1f6feb", "random": "#8b949e", "oracle": "#2da44e"}


def draw(report: FitReport, path: Path, title: str, cost: str) -> None:
    """A PNG at `path`."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5), dpi=100)
    routed, best = report.routed, report.oracle
    axes.plot(best.shares, best.right, color=_COLOURS["oracle"], label=f"oracle (APGR {best.apgr:.2f})")
    axes.plot(routed.shares, routed.right, color=_COLOURS["routed"], label=f"complexity score (APGR {routed.apgr:.2f})")
    axes.plot((0, 1), (routed.small, routed.large), "--", color=_COLOURS["random"], label="random (APGR 0.50)")
    for name, choice in report.choices.items():
        axes.plot(choice.share, choice.right, "o", color=_COLOURS["routed"])
        axes.annotate(name, (choice.share, choice.right), textcoords="offset points", xytext=(6, -12))
    axes.set(xlabel=f"share of {cost} that the large model serves", ylabel="answered rightly", title=title, xlim=(0, 1))
    axes.yaxis.set_major_formatter("{x:.1%}")
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    pyplot.close(figure)
