"""Report of a fit as Markdown tables, for a terminal and for the page of figures."""

from gateway.routing.fitting.fit import Fit, FitReport

_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def describe(fitted: Fit, report: FitReport, cost: str) -> str:
    """The report of a fit. `cost`: unit of the cost shares, tokens or calls."""
    routed, best = report.routed, report.oracle
    below = ", ".join(f"{share:.0%}" for share in routed.shares_below_random) or "none"
    lines = [
        f"fitted to {fitted.seen} questions (penalty {fitted.penalty:g}), scored on {report.unseen} others: "
        f"the small model is right on {routed.small:.1%}, the large one on {routed.large:.1%}",
        f"APGR {routed.apgr:.3f} (random 0.5, oracle {best.apgr:.3f}); below random at shares: {below}",
        "",
        f"| share of {cost} to the large model | routed | random | oracle |",
        "|---|---|---|---|",
    ]
    for share in _SHARES:
        values = (routed.right_at(share), routed.random_at(share), best.right_at(share))
        lines.append(f"| {share:.0%} | {' | '.join(f'{value:.1%}' for value in values)} |")
    lines += ["", f"| preference | from score | share of {cost} | right | of the gap |", "|---|---|---|---|---|"]
    for name, choice in report.choices.items():
        figures = (f"{choice.threshold:.4f}", *(f"{x:.1%}" for x in (choice.share, choice.right, choice.recovered)))
        lines.append(f"| {name} | {' | '.join(figures)} |")
    return "\n".join(lines)
