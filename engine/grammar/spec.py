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

    `param` names the field that it came from, `parts` are the grammars that it is made of, each from a field of its
    own; two specs that differ in nothing else are the same.
    """

    kind: GrammarKind
    source: str
    param: str = field(default="grammar", compare=False)
    parts: "tuple[GrammarSpec, ...]" = field(default=(), compare=False)

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | bool, param: str = "grammar", parts: "tuple[GrammarSpec, ...]" = ()
    ) -> "GrammarSpec":
        """JSON that validates against the schema, without any white space outside strings.

        Raises:
            ValueError: the schema is no JSON.
        """
        return cls(GrammarKind.JSON_SCHEMA, _compact(schema), param, parts)

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
    def without(cls, words: Sequence[str], param: str = "grammar") -> "GrammarSpec":
        """Any text in which none of these words stands, alone or as a part of another."""
        listed = " | ".join(_compact(word) for word in words)
        lines = ("start: TEXT", "ANY: /(?s:.*)/", f"WORD: {listed}", "WITH: ANY WORD ANY", "TEXT: ANY & ~WITH")
        return cls.ebnf("\n".join(lines), param)

    @classmethod
    def ebnf(cls, grammar: str, param: str = "grammar") -> "GrammarSpec":
        """A context-free grammar: GBNF, with a rule `root`, or Lark, with a rule `start`."""
        return cls(GrammarKind.EBNF, grammar, param)


def _compact(value: object) -> str:
    """Raises ValueError for a number that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
