"""A constraint on the answer, as the client states it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class GrammarKind(StrEnum):
    """The notation of a grammar."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    EBNF = "ebnf"


class GrammarRefused(ValueError):
    """A grammar that cannot be enforced. The message names the unsupported part or the exceeded limit."""


class SandboxFailed(RuntimeError):
    """The sandbox process could not be started; no grammar can be compiled at the moment."""


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """`source` is JSON for a schema, a JSON array of strings for a choice, else the text as the client wrote it.

    `param` names the request field that holds the grammar, for error messages. `parts` are the grammars it was
    assembled from, each with its own field. Neither takes part in equality.
    """

    kind: GrammarKind
    source: str
    param: str = field(default="grammar", compare=False)
    parts: "tuple[GrammarSpec, ...]" = field(default=(), compare=False)

    @classmethod
    def json_schema(
        cls, schema: Mapping[str, Any] | bool, param: str = "grammar", parts: "tuple[GrammarSpec, ...]" = ()
    ) -> "GrammarSpec":
        """JSON that validates against the schema, without white space outside strings.

        Raises:
            ValueError: the schema is not JSON.
        """
        return cls(GrammarKind.JSON_SCHEMA, _compact(schema), param, parts)

    @classmethod
    def json_object(cls, param: str = "grammar") -> "GrammarSpec":
        """Any JSON object."""
        return cls.json_schema({"type": "object"}, param)

    @classmethod
    def regex(cls, pattern: str, param: str = "grammar") -> "GrammarSpec":
        """Text that the pattern matches from start to end. Rust `regex` syntax: no look-around, no back references."""
        return cls(GrammarKind.REGEX, pattern, param)

    @classmethod
    def choice(cls, choices: Sequence[str], param: str = "grammar") -> "GrammarSpec":
        """Exactly one of these texts."""
        return cls(GrammarKind.CHOICE, _compact(list(choices)), param)

    @classmethod
    def without(cls, words: Sequence[str], param: str = "grammar") -> "GrammarSpec":
        """Any text that contains none of these words as a substring."""
        listed = " | ".join(_compact(word) for word in words)
        lines = ("start: TEXT", "ANY: /(?s:.*)/", f"WORD: {listed}", "WITH: ANY WORD ANY", "TEXT: ANY & ~WITH")
        return cls.ebnf("\n".join(lines), param)

    @classmethod
    def ebnf(cls, grammar: str, param: str = "grammar") -> "GrammarSpec":
        """A context-free grammar: GBNF with a rule `root`, or Lark with a rule `start`."""
        return cls(GrammarKind.EBNF, grammar, param)


def _compact(value: object) -> str:
    """Raises ValueError for a number that JSON cannot represent."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
