"""Prevents user text from becoming special tokens when a chat template inserts it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from engine.text.literals import any_of

_PRIVATE_USE = ((0xE010, 0xF900), (0xF0000, 0xFFFFE), (0x100000, 0x10FFFE))


class TypedSpecials:
    """Finds the texts of special tokens in a conversation's strings and splits them with a mark.

    The mark is a private-use character that occurs nowhere in the conversation. It is inserted after the first
    character of each special token text, in any case, and of each string suffix that could become one with text that
    the template appends. A special token in the rendered text without a mark therefore begins in the template itself.
    The mark is removed before encoding.
    """

    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = [text for text in special_texts if text]
        self._pattern = _starts_of(texts)
        self._firsts = frozenset(text[0].lower() for text in texts)
        self._beginnings = frozenset(text[:end].lower() for text in texts for end in range(1, len(text)))
        self._longest = max(map(len, texts), default=0)

    def guard(self, value: Any, *, apart_from: str = "") -> tuple[Any, str]:
        """A copy of nested data with marks, and the mark; the value itself and "" if none is needed.

        The mark does not occur in `apart_from` either.

        Raises:
            ValueError: every private-use character is in use.
        """
        strings = list(strings_of(value))
        if not any(self._cuts(string) for string in strings):
            return value, ""
        mark = unused_character([apart_from, *strings])
        return self._marked(value, mark), mark

    def _cuts(self, text: str) -> list[int]:
        """Positions after the first characters that need a mark."""
        cuts = [match.end() for match in self._pattern.finditer(text)]
        tail = text[-self._longest :]
        if not self._firsts.isdisjoint(tail.lower()):
            lengths = range(1, len(tail) + 1)
            cuts.extend(len(text) - n + 1 for n in lengths if tail[-n:].lower() in self._beginnings)
        return cuts

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            cuts = [0, *sorted(set(self._cuts(value))), len(value)]
            return mark.join(value[start:end] for start, end in pairwise(cuts))
        if isinstance(value, Mapping):
            return {self._marked(key, mark): self._marked(item, mark) for key, item in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self._marked(item, mark) for item in value]
        return value


def unused_character(texts: Iterable[str]) -> str:
    """A private-use character that occurs in none of the texts.

    Raises:
        ValueError: all of them occur.
    """
    taken = set().union(*texts)
    free = (chr(code) for start, end in _PRIVATE_USE for code in range(start, end) if chr(code) not in taken)
    character = next(free, None)
    if character is None:
        raise ValueError("the text uses every private-use character there is")
    return character


def strings_of(value: Any) -> Iterator[str]:
    """All strings in nested data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_of(key)
            yield from strings_of(item)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        for item in value:
            yield from strings_of(item)


def _starts_of(texts: Sequence[str]) -> re.Pattern[str]:
    """Matches the first character of each occurrence, overlapping ones too, in any case."""
    rests: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        rests[text[0]].append(text[1:])
    alternatives = (f"{re.escape(first)}(?={any_of(rest)})" for first, rest in rests.items())
    return re.compile("|".join(alternatives) or r"(?!)", re.IGNORECASE)
