"""What an answer has to look like, as its caller says it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "ebnf"


class GrammarRefused(ValueError):
    """A grammar that cannot be enforced: the message says which part of it, or what it takes too much of."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`source` is JSON for a schema, a JSON array of strings for a choice, else the text as it was written.

    `param` names the field that it came from; two specs that differ in nothing else are the same.
    """

    kind: GrammarKind
    source: str
    param: str = field(default="grammar", compare=False)

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool, param: str = "grammar") -> "GrammarSpec":
        """JSON that validates against the schema, without any white space outside strings.

        Raises:
            ValueError: the schema is no JSON.
        """
        return cls(GrammarKind.JSON_SCHEMA, _compact(schema), param)

    @classmethod
    def json_object(cls, param: str = "grammar") -> "GrammarSpec":
        """Any JSON object."""
        return cls.json_schema({"type": "object"}, param)

    @classmethod
    def regex(cls, pattern: str, param: str = "grammar") -> "GrammarSpec":
        """Text that the pattern (of Rust's `regex`: no look-around, no back references) matches from end to end."""
        return cls(GrammarKind.REGEX, pattern, param)

    @classmethod
    def choice(cls, choices: Sequence[str], param: str = "grammar") -> "GrammarSpec":
        """One of these texts."""
        return cls(GrammarKind.CHOICE, _compact(list(choices)), param)

    @classmethod
    def ebnf(cls, grammar: str, param: str = "grammar") -> "GrammarSpec":
        """A context-free grammar: GBNF, with a rule `root`, or Lark, with a rule `start`."""
        return cls(GrammarKind.EBNF, grammar, param)


def _compact(value: object) -> str:
    """Raises ValueError for a number that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
