"""The project's own questions, with who of SmolLM2 and smollm2-small was right on each.

`outcomes.jsonl` is what this wrote, which asks both models all of `questions.jsonl`:

    turnpike route fit --small smollm2-small --large smollm2 --questions benchmarks/routing/questions.jsonl \\
        --outcomes benchmarks/routing/outcomes.jsonl --out weights-of-this-pair.json
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from benchmarks.routing.questions import FILE as QUESTIONS
from gateway.routing.fitting.fit import Sample
from gateway.routing.fitting.outcomes import read_outcomes
from gateway.routing.fitting.outcomes import samples as pair_samples
from gateway.routing.fitting.questions import read_questions
from gateway.routing.score import ComplexityScore
from gateway.tenancy.policies import Preference

OUTCOMES = Path(__file__).with_name("outcomes.jsonl")


def samples(outcomes: Path = OUTCOMES) -> list[Sample]:
    return pair_samples(read_questions(QUESTIONS), read_outcomes(outcomes))


def by_family(score: ComplexityScore, drawn: Sequence[Sample]) -> str:
    """A table of the questions that the fit did not see."""
    families: dict[str, list[Sample]] = defaultdict(list)
    for sample in drawn:
        if not sample.seen:
            families[sample.family].append(sample)
    threshold = score.thresholds[Preference.BALANCED]
    lines = [
        "| family | questions | small right | large right | balanced gives the large one |",
        "|---|---|---|---|---|",
    ]
    for family, members in sorted(families.items()):
        small, large = (sum(right) for right in zip(*((s.graded.small, s.graded.large) for s in members), strict=True))
        sent = sum(score.of(sample.question) >= threshold for sample in members)
        shares = " | ".join(f"{count / len(members):.0%}" for count in (small, large, sent))
        lines.append(f"| {family} | {len(members)} | {shares} |")
    return "\n".join(lines)
