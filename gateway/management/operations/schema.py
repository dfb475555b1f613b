"""Schemas of the admin API's requests and responses. One declaration validates strictly and generates OpenAPI.

A `Kind` is a kind of JSON value. `Record`s are objects: undeclared members are refused, and a null member counts as
absent, as everywhere in this API.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from gateway.http.errors import invalid
from gateway.http.fields import Fields, as_array, as_integer, as_string, missing, wrong_type

T = TypeVar("T")

MAX_INTEGER = 2**53 - 1
"""The largest integer that every JSON parser represents exactly."""

_INTEGER = re.compile(r"-?[0-9]{1,18}")
_INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(\.\d{1,6})?([Zz]|[+-]\d{2}:\d{2})", re.ASCII)


class Kind(Protocol):
    """A kind of JSON value."""

    def read(self, value: object, path: str) -> Any:
        """The value as the program wants it. `path` names it in an error.

        Raises:
            APIError: 400, it is not of this kind.
        """
        ...

    def from_text(self, text: str) -> object:
        """The JSON value that a query parameter's text stands for; `read` still has to judge it."""
        ...

    def describe(self) -> dict[str, Any]:
        """Its JSON schema."""
        ...


@dataclass(frozen=True, slots=True)
class Text:
    """Printable text, by default not empty. `pattern` must match all of it. `max_lines`: with more than one, line feeds
    separate lines; other line breaks are read as those."""

    max_chars: int
    min_chars: int = 1
    pattern: str | None = None
    format: str | None = None
    max_lines: int = 1

    def read(self, value: object, path: str) -> str:
        text = as_string(value, path)
        lines = text.splitlines() if self.max_lines > 1 else [text]
        if len(lines) > self.max_lines:
            raise invalid(path, f"{path} must have at most {self.max_lines} lines.")
        text = "\n".join(lines)
        if not self.min_chars <= len(text) <= self.max_chars:
            raise invalid(path, f"{path} must have {self.min_chars} to {self.max_chars} characters.")
        if not all(line.isprintable() for line in lines):
            raise invalid(path, f"{path} must consist of printable characters.")
        if self.pattern is not None and not re.fullmatch(self.pattern, text):
            raise invalid(path, f"{path} must match {self.pattern}.")
        return text

    def from_text(self, text: str) -> object:
        return text

    def describe(self) -> dict[str, Any]:
        said: dict[str, Any] = {"type": "string", "minLength": self.min_chars, "maxLength": self.max_chars}
        if self.pattern is not None:
            said["pattern"] = f"^{self.pattern}$"
        if self.format is not None:
            said["format"] = self.format
        return said


@dataclass(frozen=True, slots=True)
class Integer:
    low: int
    high: int = MAX_INTEGER

    def read(self, value: object, path: str) -> int:
        return as_integer(value, path, self.low, self.high)

    def from_text(self, text: str) -> object:
        return int(text) if _INTEGER.fullmatch(text) else text

    def describe(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Number:
    """A number that is not negative; for answers alone."""

    def read(self, value: object, path: str) -> object:
        return value

    def from_text(self, text: str) -> object:
        return text

    def describe(self) -> dict[str, Any]:
        return {"type": "number", "minimum": 0}


@dataclass(frozen=True, slots=True)
class Boolean:
    def read(self, value: object, path: str) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(path, "a boolean", value)
        return value

    def from_text(self, text: str) -> object:
        return {"true": True, "false": False}.get(text, text)

    def describe(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words. What is read is the element of `words`, for example of an enumeration."""

    words: tuple[str, ...]

    def read(self, value: object, path: str) -> str:
        text = as_string(value, path)
        if text not in self.words:
            raise invalid(path, f"{path} must be one of {', '.join(self.words)}.")
        return self.words[self.words.index(text)]

    def from_text(self, text: str) -> object:
        return text

    def describe(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment, as RFC 3339 writes it; in UTC when the server writes it."""

    def read(self, value: object, path: str) -> datetime:
        text = as_string(value, path)
        try:
            if _INSTANT.fullmatch(text):
                return datetime.fromisoformat(text.upper()).astimezone(UTC)
        except (ValueError, OverflowError):  # the 30th of February; before the year 1
            pass
        raise invalid(path, f"{path} must be an RFC 3339 timestamp, such as 2026-01-02T12:00:00Z.")

    def from_text(self, text: str) -> object:
        return text

    def describe(self) -> dict[str, Any]:
        return {"type": "string", "format": "date-time"}


@dataclass(frozen=True, slots=True)
class ListOf:
    """An array."""

    item: Kind
    max_items: int
    min_items: int = 0

    def read(self, value: object, path: str) -> list[Any]:
        values = as_array(value, path, self.max_items)
        if len(values) < self.min_items:
            raise invalid(path, f"{path} takes at least {self.min_items} items, got {len(values)}.")
        return [self.item.read(each, f"{path}[{i}]") for i, each in enumerate(values)]

    def from_text(self, text: str) -> object:
        """Separated by commas."""
        return [self.item.from_text(each) for each in text.split(",")]

    def describe(self) -> dict[str, Any]:
        return {
            "type": "array",
            "items": self.item.describe(),
            "minItems": self.min_items,
            "maxItems": self.max_items,
        }


@dataclass(frozen=True, slots=True)
class Anything:
    """JSON that is passed on as it stands; for answers alone."""

    def read(self, value: object, path: str) -> object:
        return value

    def from_text(self, text: str) -> object:
        return text

    def describe(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Member:
    """Of a record, or a query parameter. `secret`: it is in the first answer to a request, and null in the answer to
    its repetition."""

    kind: Kind
    about: str = ""
    required: bool = True
    nullable: bool = False
    secret: bool = False

    def describe(self) -> dict[str, Any]:
        said = self.kind.describe()
        if self.nullable or self.secret:
            said = {"anyOf": [said, {"type": "null"}]}
        return said | ({"description": self.about} if self.about else {})


def optional(kind: Kind, about: str = "") -> Member:
    return Member(kind, about, required=False)


def nullable(kind: Kind, about: str = "") -> Member:
    """Of an answer: always there, maybe null."""
    return Member(kind, about, nullable=True)


@dataclass(frozen=True, slots=True)
class Record(Generic[T]):
    """An object. `make` gets its members as keywords, None for those that are absent. `name` is its name in the OpenAPI
    document."""

    name: str
    make: Callable[..., T]
    members: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))

    def read(self, value: object, path: str) -> T:
        fields = Fields(value, path)
        values = {}
        for name, member in self.members.items():
            given = fields.take(name)
            if given is None and member.required:
                raise missing(fields.path(name))
            values[name] = None if given is None else member.kind.read(given, fields.path(name))
        fields.finish({})
        return self.make(**values)

    def from_text(self, text: str) -> object:
        return text

    def describe(self) -> dict[str, Any]:
        """A reference: the OpenAPI document holds each record once, as `define` says."""
        return {"$ref": f"#/components/schemas/{self.name}"}

    def define(self, *, answer: bool) -> dict[str, Any]:
        """In an answer every member is there; in a request those that are not required may be null too."""
        described = {
            name: member.describe() if answer or member.required else {"anyOf": [member.describe(), {"type": "null"}]}
            for name, member in self.members.items()
        }
        return {
            "type": "object",
            "properties": described,
            "required": [name for name, member in self.members.items() if answer or member.required],
            "additionalProperties": False,
        }


def answer(name: str, members: Mapping[str, Member | Kind]) -> Record[dict[str, Any]]:
    """A record that the server writes."""
    return Record(
        name, dict, {key: each if isinstance(each, Member) else Member(each) for key, each in members.items()}
    )


def records_in(kind: Kind) -> Sequence[Record[Any]]:
    """A kind's records, itself and what it is made of, each once."""
    match kind:
        case Record():
            inner = [each for member in kind.members.values() for each in records_in(member.kind)]
            return list({each.name: each for each in (kind, *inner)}.values())
        case ListOf():
            return records_in(kind.item)
        case _:
            return []


def without_secrets(kind: Kind, value: Any) -> Any:
    """An answer as it may be kept: null in the place of every secret."""
    match kind:
        case Record() if isinstance(value, dict):
            return {
                name: None if kind.members[name].secret else without_secrets(kind.members[name].kind, each)
                for name, each in value.items()
            }
        case ListOf() if value is not None:
            return [without_secrets(kind.item, each) for each in value]
        case _:
            return value
