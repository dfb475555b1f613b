"""The check of words finds what it should in docs and code, and nothing in code blocks and names."""

import pytest

from tests.words import DOCS, ROOT, findings_in, markdown_prose, missing_paths, python_prose

PYTHON = '''
"""Parses requests.

They go on later.
"""

LIMIT = 1
"""What a request may need."""


def parse(beside: int) -> str:
    """Whether the request is about to end."""
    return "nobody"  # let go of it
'''


def test_docstrings_and_comments() -> None:
    found = sorted((line, words) for line, words, _ in findings_in(python_prose(PYTHON)))
    assert found == [(4, "go on"), (8, "What"), (13, "let go of")]


def test_help_texts() -> None:
    found = [words for _, words, _ in findings_in(python_prose('Option("--tenant", help="Whose.")'))]
    assert found == ["Whose"]


def test_assertion_messages() -> None:
    text = 'assert beside, "nobody"\nassert beside, f"{anew} whoever"\nassert beside\n'
    found = [(line, words) for line, words, _ in findings_in(python_prose(text))]
    assert found == [(1, "nobody"), (2, "whoever")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Nobody reads.", ["Nobody"]),
        ("`nobody` is a user.", []),
        ("Besides, it is about to end.", []),
        ("    nobody", []),
        ("```\nnobody\n```\nanew", ["anew"]),
    ],
)
def test_docs(text: str, found: list[str]) -> None:
    assert [words for _, words, _ in findings_in(markdown_prose(text))] == found


def test_paths_in_docs() -> None:
    found = [path for _, path, _ in missing_paths("`tests/words.py`, `docs/`\n`tests/no_words.py`")]
    assert found == ["tests/no_words.py"]


def test_every_pattern_of_docs_finds_some() -> None:
    assert all(any(ROOT.glob(pattern)) for pattern in DOCS)
