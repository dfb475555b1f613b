"""Structured output: OpenAI's `response_format` and vLLM's `guided_*` and `structured_outputs`."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from engine.grammar import GrammarSpec
from engine.grammar.closed_schema import closed_schema
from gateway.http.bounds import MAX_GRAMMAR_BYTES, MAX_GUIDED_CHOICES, MAX_REGEX_CHARS, MAX_SCHEMA_NESTING
from gateway.http.errors import APIError, invalid
from gateway.http.fields import (
    Fields,
    as_array,
    as_string,
    empty_array,
    empty_string,
    missing,
    unsupported_value,
    wrong_length,
    wrong_pattern,
    wrong_type,
)
from gateway.http.json_body import parse_json

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_DESCRIPTION_CHARS = 4096

REFUSED_STRUCTURED: Mapping[str, tuple[object, ...]] = {
    "backend": (),
    "disable_additional_properties": (False,),
    "disable_any_whitespace": (True, False),  # the grammar allows none
    "disable_fallback": (True, False),  # there is no fallback
    "structural_tag": (),
    "whitespace_pattern": (),
}
"""Members of vLLM's `structured_outputs` that are not supported, each with its neutral values."""


def take_grammar(fields: Fields) -> GrammarSpec | None:
    """The one constraint of the body, from any of the parameters that state one; None for free text.

    Only its bounds are checked here. Compilation validates the grammar.

    Raises:
        APIError: a value of a wrong type or over a bound, or more than one of them.
    """
    wanted = [_response_format(fields), *_guided(fields, "guided_"), _structured_outputs(fields)]
    specs = [spec for spec in wanted if spec is not None]
    if len(specs) > 1:
        raise invalid(specs[1].param, f"'{specs[0].param}' and '{specs[1].param}' cannot be used together.")
    return specs[0] if specs else None


def _response_format(fields: Fields) -> GrammarSpec | None:
    given = fields.nested("response_format")
    return None if given is None else read_format(given, nested=True)


def read_format(given: Fields, *, nested: bool) -> GrammarSpec | None:
    """Parse OpenAI's format object. `nested`: schema and name are in a member `json_schema`, as in chat; otherwise they
    are members of the object itself, as in responses.

    Raises:
        APIError: a value of a wrong type or over a bound.
    """
    kind, spec = given.required_string("type"), None
    match kind:
        case "text":
            pass
        case "json_object":
            spec = GrammarSpec.json_object(given.path("type"))
        case "json_schema":
            wrapping = given.nested("json_schema") if nested else given
            if wrapping is None:
                raise missing(given.path("json_schema"))
            spec = _named_schema(wrapping)
            wrapping.finish({})
        case _:
            raise unsupported_value(given.path("type"), kind, ("text", "json_object", "json_schema"))
    given.finish({"json_schema": ()} if nested else {})
    return spec


def _named_schema(wrapping: Fields) -> GrammarSpec:
    """A schema with its name. It is enforced with and without `strict`."""
    if not _NAME.fullmatch(wrapping.required_string("name")):
        raise wrong_pattern(wrapping.path("name"), "1 to 64 letters, digits, underscores and dashes")
    if len(wrapping.string("description") or "") > _MAX_DESCRIPTION_CHARS:
        path = wrapping.path("description")
        raise invalid(path, f"Invalid '{path}': string too long. The maximum length is {_MAX_DESCRIPTION_CHARS}.")
    wrapping.boolean("strict", False)
    schema = wrapping.take("schema")
    if schema is None:
        raise missing(wrapping.path("schema"))
    return schema_spec(schema, wrapping.path("schema"))


def _structured_outputs(fields: Fields) -> GrammarSpec | None:
    given = fields.nested("structured_outputs")
    if given is None:
        return None
    wanted = [spec for spec in _guided(given, "") if spec is not None]
    if given.boolean("json_object", False):
        wanted.append(GrammarSpec.json_object(given.path("json_object")))
    given.finish(REFUSED_STRUCTURED)
    if len(wanted) != 1:
        raise invalid(
            "structured_outputs",
            "'structured_outputs' must have exactly one of 'json', 'regex', 'choice', 'grammar' and 'json_object'.",
        )
    return wanted[0]


def _guided(fields: Fields, prefix: str) -> list[GrammarSpec | None]:
    """vLLM's four constraints, under `prefix` and their name."""
    readers: dict[str, Callable[[object, str], GrammarSpec]] = {
        "json": schema_spec,
        "regex": _regex,
        "choice": _choice,
        "grammar": _grammar,
    }
    wanted: list[GrammarSpec | None] = []
    for name, read in readers.items():
        value = fields.take(prefix + name)
        wanted.append(None if value is None else read(value, fields.path(prefix + name)))
    return wanted


def schema_spec(value: object, param: str) -> GrammarSpec:
    """A schema: an object, true or false, or (vLLM's extension) a string that contains one. Objects are closed."""
    if isinstance(value, str):
        _require_bytes(value.encode(), param)
        try:
            value = parse_json(value.encode(), MAX_SCHEMA_NESTING)
        except APIError:
            raise invalid(
                param, f"Invalid '{param}': expected JSON of at most {MAX_SCHEMA_NESTING} nested levels."
            ) from None
    if not isinstance(value, dict | bool):
        raise wrong_type(param, "a JSON schema", value)
    if _nests_deeper(value, MAX_SCHEMA_NESTING):
        raise invalid(param, f"Invalid '{param}': the schema has more than {MAX_SCHEMA_NESTING} nested levels.")
    _require_bytes(orjson.dumps(value), param)  # a fast estimate, before the slow canonical form
    try:
        spec = GrammarSpec.json_schema(closed_schema(value), param)
    except ValueError:
        raise invalid(param, f"Invalid '{param}': a number is too large.") from None
    _require_bytes(spec.source.encode(), param)
    return spec


def _regex(value: object, param: str) -> GrammarSpec:
    pattern = as_string(value, param)
    if not 0 < len(pattern) <= MAX_REGEX_CHARS:
        raise wrong_length(param, MAX_REGEX_CHARS)
    return GrammarSpec.regex(pattern, param)


def _choice(value: object, param: str) -> GrammarSpec:
    items = as_array(value, param, MAX_GUIDED_CHOICES)
    choices = [as_string(item, f"{param}[{i}]") for i, item in enumerate(items)]
    if not choices:
        raise empty_array(param)
    for i, choice in enumerate(choices):
        if not choice:
            raise empty_string(f"{param}[{i}]")
    _require_bytes("".join(choices).encode(), param)
    return GrammarSpec.choice(choices, param)


def _grammar(value: object, param: str) -> GrammarSpec:
    grammar = as_string(value, param)
    if not grammar:
        raise empty_string(param)
    _require_bytes(grammar.encode(), param)
    return GrammarSpec.ebnf(grammar, param)


def _require_bytes(text: bytes, param: str) -> None:
    if len(text) > MAX_GRAMMAR_BYTES:
        message = f"Invalid '{param}': too large. The maximum is {MAX_GRAMMAR_BYTES} bytes, but got {len(text)} bytes."
        raise invalid(param, message)


def _nests_deeper(value: Any, levels: int) -> bool:
    """Whether arrays and objects nest over `levels` deep."""
    layer = [value]
    for _ in range(levels):
        layer = [item for each in layer for item in _items(each)]
        if not layer:
            return False
    return True


def _items(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in children if type(child) is dict or type(child) is list]
