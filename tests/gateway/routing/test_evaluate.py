"""Asking models questions, with a tiny model that knows nothing."""

from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from gateway.routing.fitting.evaluate import AnswerBook, EvaluationFailed, ModelAnswer, evaluate, fingerprint
from gateway.routing.fitting.graders import Check
from gateway.routing.fitting.outcomes import (
    PairOutcome,
    UnusableOutcomes,
    grade,
    read_outcomes,
    samples,
    write_outcomes,
)
from gateway.routing.fitting.pareto import Graded
from gateway.routing.fitting.questions import CheckedQuestion
from tests.support.tiny_models import make_checkpoint

QUESTIONS = tuple(
    CheckedQuestion(({"role": "user", "content": f"Say {word}"},), Check("says", word), 4) for word in ("one", "two")
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("exam") / "tiny", "llama")


def load(path: Path) -> Engine:
    return Engine.load({"tiny": path}, EngineConfig(device="cpu", threads=1, kv_cache_bytes=2**20))


def refuse(path: Path) -> Engine:
    raise AssertionError("it was loaded")


def silent(done: int, total: int) -> None: ...


def test_every_question_is_answered_and_counted(model: Path, tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    answers = evaluate(model, QUESTIONS, AnswerBook(tmp_path / "book"), load, lambda *now: heard.append(now))
    assert set(answers) == {question.key for question in QUESTIONS}
    assert heard == [(1, 2), (2, 2)]
    for question in QUESTIONS:
        assert answers[question.key].model == fingerprint(model)
        assert answers[question.key].tokens > 4


def test_what_is_in_the_book_is_not_asked_again(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "book"
    evaluate(model, QUESTIONS[:1], AnswerBook(path), load, silent)
    with path.open("a") as file:
        file.write('{"key": "cut sho')
    first = evaluate(model, QUESTIONS, AnswerBook(path), load, silent)
    assert evaluate(model, QUESTIONS, AnswerBook(path), refuse, silent) == first


def test_another_model_s_answers_are_not_taken(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "book"
    with AnswerBook(path).writing() as write:
        write(ModelAnswer(QUESTIONS[0].key, "another", 9, "one"))
    answers = evaluate(model, QUESTIONS, AnswerBook(path), load, silent)
    assert answers[QUESTIONS[0].key].model == fingerprint(model)
    assert AnswerBook(path).of("another") == {QUESTIONS[0].key: ModelAnswer(QUESTIONS[0].key, "another", 9, "one")}


def test_a_model_that_changed_is_another(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    before = fingerprint(tmp_path)
    (tmp_path / "config.json").write_text("{ }")
    assert fingerprint(tmp_path) != before


def test_a_question_too_long_for_the_model_is_named(model: Path, tmp_path: Path) -> None:
    long = CheckedQuestion(({"role": "user", "content": "too long " * 5000},), Check("says", "x"))
    with pytest.raises(EvaluationFailed, match="too long"):
        evaluate(model, (long,), AnswerBook(tmp_path / "book"), load, silent)


def test_outcomes_say_who_was_right_and_what_the_large_model_cost(tmp_path: Path) -> None:
    one, two = (question.key for question in QUESTIONS)
    small = {one: ModelAnswer(one, "s", 10, "one"), two: ModelAnswer(two, "s", 11, "three")}
    large = {one: ModelAnswer(one, "l", 20, "one"), two: ModelAnswer(two, "l", 21, "It is two.")}
    marked = grade(QUESTIONS, small, large)
    assert marked == [PairOutcome(one, True, True, 20), PairOutcome(two, False, True, 21)]
    write_outcomes(tmp_path / "outcomes.jsonl", marked)
    assert read_outcomes(tmp_path / "outcomes.jsonl") == marked
    found = samples(QUESTIONS, marked)
    assert [each.graded for each in found] == [Graded(True, True, 20.0), Graded(False, True, 21.0)]
    with pytest.raises(UnusableOutcomes, match="1 of 2"):
        samples(QUESTIONS, marked[:1])


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outcomes.jsonl").write_text('{"key": 1}\n')
    with pytest.raises(UnusableOutcomes):
        read_outcomes(tmp_path / "outcomes.jsonl")
