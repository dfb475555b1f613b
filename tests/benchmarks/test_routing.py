"""Claims about the shipped score, checked against the stored outcomes; and the reading and drawing around it."""

import gzip
import json
from pathlib import Path

from benchmarks.routing import own, public
from benchmarks.routing.plot import draw
from gateway.routing.fitting.fit import judge
from gateway.routing.fitting.pareto import Graded
from gateway.routing.score import ComplexityScore
from gateway.tenancy.policies import Preference


def test_the_shipped_score_beats_a_coin_at_every_share_of_our_own_questions() -> None:
    report = judge(ComplexityScore.load(), own.samples())
    assert report.routed.apgr >= 0.6
    assert report.routed.shares_below_random == ()
    balanced = report.choices[Preference.BALANCED]
    assert balanced.recovered > balanced.share


def test_every_family_of_questions_is_in_the_table() -> None:
    drawn = own.samples()
    table = own.by_family(ComplexityScore.load(), drawn)
    for family in {sample.family for sample in drawn}:
        assert f"| {family} |" in table


def test_real_questions_are_read_with_calls_as_their_cost(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps({"domain": "gsm8k", "prompt": "How many?", "weak": False, "strong": True}) + "\n")
    (sample,) = public.samples(path)
    assert (sample.question.text, sample.family, sample.graded) == ("How many?", "gsm8k", Graded(False, True, 1.0))


def test_a_report_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "own.png"
    draw(judge(ComplexityScore.load(), own.samples()), path, "Our own questions", "tokens")
    assert path.read_bytes().startswith(b"\x89PNG")
