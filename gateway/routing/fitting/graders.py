"""Graders: rules that decide whether an answer is correct, without a judge model.

Models wrap an answer in sentences, so a rule searches the text for it. Case and punctuation count only where a rule
says so.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Check:
    """A rule with its parameters. `rule`: one of `RULES`. `answer`: the expected answer. `among`: the alternatives that
    it must precede.

    Raises:
        ValueError: no rule has that name.
    """

    rule: str
    answer: str
    among: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"the rule is one of {', '.join(RULES)}")

    def passes(self, given: str) -> bool:
        """Whether a model's answer is correct."""
        return RULES[self.rule](self, given)


def _says(check: Check, given: str) -> bool:
    """The words of the answer occur consecutively."""
    return _position(check.answer, given) is not None


def _chooses(check: Check, given: str) -> bool:
    """The answer occurs, and before every alternative in `among`."""
    mine = _position(check.answer, given)
    others = [place for other in check.among if (place := _position(other, given)) is not None]
    return mine is not None and all(mine < other for other in others)


def _number(check: Check, given: str) -> bool:
    """The last number of the first paragraph equals the answer: the result of a calculation that is shown."""
    numbers = _NUMBER.findall(given.strip().split("\n\n")[0].replace(",", ""))
    return bool(numbers) and float(numbers[-1]) == float(check.answer)


def _spells(check: Check, given: str) -> bool:
    """The letters occur one by one with any separators, and no further letter follows."""
    letters = "[^a-z0-9]+".join(map(re.escape, check.answer.lower()))
    end = r"(?![a-z0-9])(?![-\s,]{1,2}[a-z0-9](?![a-z0-9]))"
    return re.search(rf"(?<![a-z0-9]){letters}{end}", given.lower()) is not None


def _orders(check: Check, given: str) -> bool:
    """The words of the answer occur exactly in their order; other words are ignored."""
    wanted = _words(check.answer)
    return [word for word in _words(given) if word in wanted][-len(wanted) :] == wanted


def _literal(check: Check, given: str) -> bool:
    """The characters of the answer occur, case included."""
    return check.answer in given


def _json(check: Check, given: str) -> bool:
    """The first JSON object in the text equals the answer. Numbers may be strings."""
    start = given.find("{")
    if start < 0:
        return False
    try:
        found, _ = json.JSONDecoder().raw_decode(given, start)
    except (ValueError, RecursionError):
        return False
    return bool(_plain(found) == _plain(json.loads(check.answer)))


RULES: Mapping[str, Callable[[Check, str], bool]] = MappingProxyType(
    {
        "says": _says,
        "chooses": _chooses,
        "number": _number,
        "spells": _spells,
        "orders": _orders,
        "literal": _literal,
        "json": _json,
    }
)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _position(answer: str, given: str) -> int | None:
    """The index of the word that starts the first occurrence of the answer; None: it does not occur."""
    wanted, said = _words(answer), _words(given)
    return next((i for i in range(len(said) - len(wanted) + 1) if said[i : i + len(wanted)] == wanted), None)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key.lower(): _plain(item) for key, item in value.items()}
    return str(value).lower()
