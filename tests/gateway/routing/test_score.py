"""The complexity score: what it promises of its range, its weights file and its reading of texts."""

import json
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.routing.features import NUMBERS, READ_CHARS, _tokens, read
from gateway.routing.question import Question
from gateway.routing.score import ComplexityScore, UnusableWeights
from gateway.tenancy.policies import Preference

SHIPPED = ComplexityScore.load()

questions = st.builds(
    Question,
    text=st.text(max_size=400),
    turns=st.integers(1, 1000),
    system_chars=st.integers(0, 10**6),
    has_tools=st.booleans(),
    has_schema=st.booleans(),
    max_tokens=st.none() | st.integers(1, 10**6),
)


@given(questions)
def test_every_question_has_a_score_between_0_and_1(question: Question) -> None:
    assert 0 <= SHIPPED.of(question) <= 1
    assert SHIPPED.of(question) == SHIPPED.of(question)


@given(questions)
def test_as_many_numbers_as_names(question: Question) -> None:
    assert len(read(question)[0]) == len(NUMBERS)


def test_the_shipped_thresholds_let_more_through_the_more_quality_counts() -> None:
    assert (
        0
        < SHIPPED.thresholds[Preference.QUALITY]
        <= SHIPPED.thresholds[Preference.BALANCED]
        <= SHIPPED.thresholds[Preference.ECONOMY]
        < 1
    )


@given(st.text(st.characters(max_codepoint=127), max_size=200))
def test_ascii_is_read_as_any_other_text_is(text: str) -> None:
    """It has a faster way of its own. What is not ASCII at the end, and no letter, brings the text to the other one."""
    tokens, capitals = _tokens(text)
    assert _tokens(f"{text}\u00a0") == (tokens, capitals)


def test_of_a_long_text_the_start_and_the_end_are_read() -> None:
    middle = string.ascii_lowercase * READ_CHARS
    _, words = read(Question(text=f"Summarise this: {middle} Now prove it."))
    assert {"summarise", "prove"} <= words


def test_a_word_counts_once_and_every_number_is_the_same_word() -> None:
    _, words = read(Question(text="Add 12 to 7, then add 900."))
    assert words == {"add", "#", "to", ",", "then", "."}


def test_weights_survive_their_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    path.write_text(json.dumps(SHIPPED.to_json()))
    assert ComplexityScore.load(path).to_json() == SHIPPED.to_json()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 0}', '{"format": 1, "thresholds": 3}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "weights.json"
    path.write_text(content)
    with pytest.raises(UnusableWeights, match=r"weights\.json"):
        ComplexityScore.load(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableWeights):
        ComplexityScore.load(tmp_path / "none.json")


def test_beyond_what_the_fit_saw_a_number_counts_no_further() -> None:
    far = Question(text="What is the capital of France?", turns=10**9)
    assert SHIPPED.of(far) == SHIPPED.of(Question(text=far.text, turns=10**12))
