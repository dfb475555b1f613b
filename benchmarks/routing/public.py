"""The complexity score on real questions: `python -m benchmarks.routing.public FILE`.

FILE has a line of JSON for each question: `prompt`, and whether a weaker and a stronger public model were right
(`weak`, `strong`). The same fit as `turnpike route fit`, with calls as the cost, as tokens are not known.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from gateway.routing.curve import Graded
from gateway.routing.fit import Sample, fit
from gateway.routing.question import Question
from gateway.routing.report import describe

DATA = Path(__file__).parents[3] / "shared/data/routing/mmlu_gsm8k.jsonl.gz"


def samples(path: Path = DATA) -> Iterator[Sample]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield Sample(Question(text=row["prompt"]), Graded(row["weak"], row["strong"], 1.0), row["domain"])


def main() -> None:
    parser = argparse.ArgumentParser(description="The complexity score on real questions.")
    parser.add_argument("file", type=Path, nargs="?", default=DATA)
    parser.add_argument("--plot", type=Path, help="a PNG of the curves")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _, report = fit(tuple(samples(options.file)))
    print(describe(report, "calls"))
    if options.plot:
        from benchmarks.routing.plot import draw

        draw(report, options.plot, "7,661 questions of MMLU and GSM8K, two public models", "calls")


if __name__ == "__main__":
    main()
