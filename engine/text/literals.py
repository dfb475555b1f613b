"""One regular expression for many literal texts, whose matching time does not grow with their number."""

import re
from collections.abc import Iterable
from typing import Any

MAX_LITERAL = 128
"""Maximum length of a text in characters: the expression nests as deep as the texts branch."""


def any_of(texts: Iterable[str]) -> str:
    """A pattern that matches the longest text at a position; with no texts, nothing.

    The texts form a trie, so that matching fails at the first character that fits none of them. A plain alternation
    would try hundreds of reserved tokens at each "[".

    Raises:
        ValueError: a text is longer than `MAX_LITERAL`.
    """
    root: dict[str, Any] = {}
    for text in texts:
        if len(text) > MAX_LITERAL:
            raise ValueError(f"{text[:32]!r}... is longer than {MAX_LITERAL} characters")
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return _expression(root) if root else r"(?!)"


def _expression(node: dict[str, Any]) -> str:
    branches = [re.escape(char) + _expression(child) for char, child in sorted(node.items()) if char]
    if not branches:
        return ""
    together = branches[0] if len(branches) == 1 and "" not in node else f"(?:{'|'.join(branches)})"
    return together + "?" if "" in node else together
