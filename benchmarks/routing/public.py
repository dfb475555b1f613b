"""Real questions, with who of a weaker and a stronger public model was right on each.

A file with a line of JSON for each: `prompt`, `domain`, `weak`, `strong`. Tokens are not known, so calls are the cost.
"""

import gzip
import json
from pathlib import Path

from gateway.routing.fitting.fit import Sample
from gateway.routing.fitting.pareto import Graded
from gateway.routing.question import Question

DATA = Path(__file__).parents[3] / "shared/data/routing/mmlu_gsm8k.jsonl.gz"


def samples(path: Path = DATA) -> list[Sample]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [_sample(json.loads(line)) for line in lines]


def _sample(row: dict[str, str | bool]) -> Sample:
    graded = Graded(bool(row["weak"]), bool(row["strong"]), 1.0)
    return Sample(Question(text=str(row["prompt"])), graded, str(row["domain"]))
