"""How good the complexity score is: `python -m benchmarks.routing`.

The score that ships is one fit to two pairs of models (`own.py`, `public.py`); each set is scored on the questions that
fit did not see. For comparison, a fit to the set alone and the other set's fit: a score belongs to its pair.
No model is run. `--write` replaces the weights that ship, `--plots` the pictures.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.routing import own, public
from gateway.routing.fitting.fit import Fit, Sample, fit, judge
from gateway.routing.fitting.report import describe
from gateway.routing.score import SHIPPED


def main() -> None:
    parser = argparse.ArgumentParser(description="How good the complexity score is.")
    parser.add_argument("--public", type=Path, default=public.DATA, help="real questions; without them, our own alone")
    parser.add_argument("--write", action="store_true", help="replace the weights that ship")
    parser.add_argument("--plots", type=Path, help="a folder for PNGs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    mine = own.samples()
    real = public.samples(options.public) if options.public.exists() else []
    alone = [fit(drawn) for drawn in (mine, real) if drawn]
    fitted = fit(mine, real) if real else alone[0]
    print(f"## Our own questions\n\n{_section(fitted, alone, mine, 'tokens')}\n\n{own.by_family(fitted.score, mine)}\n")
    if real:
        print(f"## Real questions\n\n{_section(fitted, alone, real, 'calls')}\n")
    if options.plots:
        from benchmarks.routing.plot import draw

        title = "Our own questions: SmolLM2 and smollm2-small"
        draw(judge(fitted.score, mine), options.plots / "routing-own.png", title, "tokens")
        if real:
            title = "MMLU and GSM8K: two public models"
            draw(judge(fitted.score, real), options.plots / "routing-public.png", title, "calls")
    if options.write:
        fitted.score.save(SHIPPED)


def _section(fitted: Fit, alone: Sequence[Fit], drawn: Sequence[Sample], cost: str) -> str:
    apgrs = " and ".join(f"{judge(each.score, drawn).routed.apgr:.3f}" for each in alone)
    return f"{describe(fitted, judge(fitted.score, drawn), cost)}\n\nFitted to one set alone (ours, real): APGR {apgrs}"


if __name__ == "__main__":
    main()
