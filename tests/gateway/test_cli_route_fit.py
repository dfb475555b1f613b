"""turnpike route fit and score: from a file of questions and two models to weights that the gateway reads."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.management.cli import app
from gateway.routing.fitting.evaluate import AnswerBook, ModelAnswer, fingerprint
from gateway.routing.fitting.outcomes import read_outcomes
from gateway.routing.fitting.questions import read_questions
from gateway.routing.question import Question
from gateway.routing.score import ComplexityScore
from tests.support.tiny_models import make_checkpoint

pytestmark = pytest.mark.usefixtures("no_settings")


def turnpike(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write_questions(path: Path) -> None:
    """Greetings and proofs, each with a number of its own."""
    lines = [
        {"prompt": f"{task} {number}", "max_tokens": 2, "check": {"rule": "says", "answer": "right"}}
        for number in range(100)
        for task in ("Greet guest", "Prove theorem")
    ]
    path.write_text("\n".join(map(json.dumps, lines)))


def write_answers(path: Path, questions: Path, small: Path, large: Path) -> None:
    """The large model is right on everything, the small one on greetings. What both said to the last question is
    missing, so that both are asked it."""
    with AnswerBook(path).writing() as write:
        for question in read_questions(questions)[:-1]:
            easy = "Greet" in question.question.text
            write(ModelAnswer(question.key, fingerprint(small), 9, "right" if easy else "wrong"))
            write(ModelAnswer(question.key, fingerprint(large), 9, "right"))


def test_fit_writes_weights_that_the_gateway_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_KV_CACHE_BYTES", "1MiB")
    monkeypatch.setenv("TURNPIKE_THREADS", "1")
    monkeypatch.setenv("TURNPIKE_DEVICE", "cpu")
    small, large = (make_checkpoint(tmp_path / name, "llama") for name in ("small", "large"))
    questions, out, answers = tmp_path / "questions.jsonl", tmp_path / "weights.json", tmp_path / "answers.jsonl"
    write_questions(questions)
    write_answers(answers, questions, small, large)
    models = ("--small", small, "--large", large)
    kept = ("--answers", answers, "--outcomes", tmp_path / "outcomes.jsonl")
    result = turnpike("route", "fit", *models, "--questions", questions, "--out", out, *kept)
    assert result.exit_code == 0, result.output
    assert "APGR" in result.stdout
    assert "small: 200 of 200 questions" in result.stderr
    assert "large: 200 of 200 questions" in result.stderr
    score = ComplexityScore.load(out)
    hard, easy = (score.of(Question(text=text, max_tokens=2)) for text in ("Prove theorem 500", "Greet guest 500"))
    assert hard > 0.7 > 0.6 > easy
    outcomes = read_outcomes(tmp_path / "outcomes.jsonl")
    assert len(outcomes) == 200
    assert sum(outcome.large for outcome in outcomes) == 199


def test_fit_names_a_model_that_is_not_there(tmp_path: Path) -> None:
    write_questions(tmp_path / "questions.jsonl")
    result = turnpike(
        *("route", "fit", "--small", "nobody", "--large", "nobody"),
        *("--questions", tmp_path / "questions.jsonl", "--out", tmp_path / "weights.json"),
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("turnpike: ")
    assert "nobody" in result.stderr
    assert not (tmp_path / "weights.json").exists()


def test_score_says_who_would_serve() -> None:
    result = turnpike("route", "score", "What is the capital of France?")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["score"] == pytest.approx((1 + told["large"] - told["small"]) / 2, abs=1e-3)
    assert set(told["served_by"]) == {"quality", "balanced", "economy"}
    assert set(told["served_by"].values()) <= {"small", "large"}


def test_score_refuses_weights_that_are_none(tmp_path: Path) -> None:
    result = turnpike("route", "score", "Hello", "--weights", tmp_path / "none.json")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"turnpike: {tmp_path / 'none.json'}: ")
    assert result.stderr.count("\n") == 1
