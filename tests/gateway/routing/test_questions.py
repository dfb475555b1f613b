"""Files of questions with checks, and what the shipped set promises."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.routing import questions as generator
from gateway.routing.fitting.questions import CheckedQuestion, UnusableQuestions, read_questions

CHECK = {"rule": "says", "answer": "Oslo"}


def read(tmp_path: Path, *lines: Any) -> tuple[CheckedQuestion, ...]:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return read_questions(path)


def test_a_prompt_is_a_conversation_of_one_message(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "Capital of Norway?"}
    (one,) = read(tmp_path, {"prompt": "Capital of Norway?", "check": CHECK})
    (other,) = read(tmp_path, {"messages": [asked], "check": CHECK})
    assert one == other
    assert one.key == other.key
    assert one.check.passes("Oslo")


def test_what_is_scored_is_what_the_user_said(tmp_path: Path) -> None:
    contents = [("system", "Be brief."), ("user", "Hello"), ("assistant", "Hi"), ("user", "Bye")]
    messages = [{"role": role, "content": content} for role, content in contents]
    (question,) = read(tmp_path, {"messages": messages, "check": CHECK, "max_tokens": 9})
    assert question.question.text == "Hello\nBye"
    assert (question.question.turns, question.question.system_chars, question.question.max_tokens) == (3, 9, 9)


def test_a_question_that_comes_twice_is_asked_once(tmp_path: Path) -> None:
    line = {"prompt": "Capital of Norway?", "check": CHECK}
    assert len(read(tmp_path, line, line, line | {"max_tokens": 5})) == 2


@pytest.mark.parametrize(
    "line",
    [
        "not JSON",
        [],
        {"prompt": "x"},
        {"check": CHECK},
        {"prompt": 3, "check": CHECK},
        {"prompt": "x", "check": {"rule": "guess", "answer": "x"}},
        {"prompt": "x", "check": CHECK, "max_tokens": 0},
        {"messages": [{"role": "tool", "content": "x"}], "check": CHECK},
    ],
)
def test_what_is_wrong_is_named_by_its_line(tmp_path: Path, line: Any) -> None:
    with pytest.raises(UnusableQuestions, match="line 2"):
        read(tmp_path, {"prompt": "x", "check": CHECK}, line)


def test_no_questions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableQuestions, match="no questions"):
        read(tmp_path, "")
    with pytest.raises(UnusableQuestions, match="cannot be read"):
        read_questions(tmp_path / "none.jsonl")


class TestShippedSet:
    def test_the_program_writes_it_again(self, tmp_path: Path) -> None:
        generator.main(["--out", str(tmp_path / "again.jsonl")])
        assert (tmp_path / "again.jsonl").read_bytes() == generator.FILE.read_bytes()

    def test_hundreds_of_questions_of_many_families_and_grades(self) -> None:
        questions = read_questions(generator.FILE)
        assert len(questions) >= 600
        assert len(questions) == len(generator.FILE.read_text().splitlines())
        families = Counter(question.family for question in questions)
        assert len(families) >= 20
        assert max(families.values()) <= generator.PER_FAMILY
        assert {question.grade for question in questions} >= {1, 2, 3, 4}

    def test_a_right_answer_passes_and_an_evasion_does_not(self) -> None:
        for question in read_questions(generator.FILE):
            check = question.check
            right = "-".join(check.answer) if check.rule == "spells" else check.answer
            assert check.passes(right), question
            assert not check.passes("Sorry, I am not sure."), question
