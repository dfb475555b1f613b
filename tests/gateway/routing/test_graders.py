"""Rules that say whether an answer is right."""

import pytest

from gateway.routing.fitting.graders import RULES, Check

CASES = [
    ("says", "Oslo", (), "The capital of Norway is Oslo, of course.", True),
    ("says", "Oslo", (), "OSLO", True),
    ("says", "Oslo", (), "Ossdal", False),
    ("says", "Oslo", (), "Oslofjord", False),
    ("says", "Buenos Aires", (), "It is Buenos  Aires.", True),
    ("says", "Buenos Aires", (), "Aires, Buenos", False),
    ("says", "The old man", (), '"the old, man"', True),
    ("chooses", "negative", ("positive",), "The review is negative, not positive.", True),
    ("chooses", "negative", ("positive",), "The review is positive and never negative.", False),
    ("chooses", "12", ("7",), "12 is larger than 7", True),
    ("chooses", "12", ("7",), "Both are numbers.", False),
    ("number", "7", (), "3 + 4 = 7\n\nThis is one of 2 ways.", True),
    ("number", "68", (), "23 + 45: 23 + 40 = 63, and 5 is 68.", True),
    ("number", "1200", (), "That is 1,200.", True),
    ("number", "7", (), "17", False),
    ("number", "7", (), "seven", False),
    ("number", "-4", (), "It is -4", True),
    ("spells", "cat", (), "C-A-T", True),
    ("spells", "cat", (), "The letters are c, a, t.", True),
    ("spells", "cat", (), 'The word "cat" is "cat".', False),
    ("spells", "cat", (), "c-a-t-s", False),
    ("spells", "cat", (), "C-A-T. A cat.", True),
    ("orders", "3 5 9", (), "Sorted: 3, 5, 9", True),
    ("orders", "3 5 9", (), "Of 9, 3 and 5 the order is 3, 5, 9.", True),
    ("orders", "3 5 9", (), "9, 5, 3", False),
    ("orders", "3 5 9", (), "3, 9", False),
    ("literal", "AB-12", (), "Your order is AB-12.", True),
    ("literal", "AB-12", (), "Your order is ab-12.", False),
    ("json", '{"name": "Anna", "age": "3"}', (), 'Here: ```json\n{"Name": "anna", "age": 3}\n```', True),
    ("json", '{"name": "Anna"}', (), '{"name": "Anna", "city": "Oslo"}', False),
    ("json", '{"name": "Anna"}', (), '{"name": "Anna"', False),
    ("json", '{"name": "Anna"}', (), "name: Anna", False),
]


@pytest.mark.parametrize(("rule", "answer", "among", "given", "right"), CASES)
def test_rule(rule: str, answer: str, among: tuple[str, ...], given: str, right: bool) -> None:
    assert Check(rule, answer, among).passes(given) is right


def test_every_rule_has_a_case_that_passes_and_one_that_does_not() -> None:
    for rule in RULES:
        assert {right for name, *_, right in CASES if name == rule} == {True, False}


@pytest.mark.parametrize("rule", RULES)
def test_an_empty_answer_is_wrong(rule: str) -> None:
    assert not Check(rule, '{"a": 1}' if rule == "json" else "7").passes("")


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="says"):
        Check("guesses", "x")
