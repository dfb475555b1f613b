"""The page `/docs`: OpenAPI documents as HTML, rendered on the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined

_PREFIX = "#/components/schemas/"
_MAX_VALUES = 12
"""Values of an enumeration that a type shows."""


@dataclass(frozen=True, slots=True)
class ShownMember:
    """A row of a table: a parameter or a member of an object."""

    name: str
    type: str
    required: bool
    about: str
    links: Sequence[str]


@dataclass(frozen=True, slots=True)
class ShownSchema:
    """A named schema with its members; `variants`: the members of each of its forms, where it has several."""

    name: str
    anchor: str
    about: str
    variants: Sequence[Sequence[ShownMember]]


@dataclass(frozen=True, slots=True)
class ShownOperation:
    """An operation. `body`, `answer`: names of schemas, or empty. `examples`: JSON text by name."""

    method: str
    path: str
    anchor: str
    about: str
    public: bool
    parameters: Sequence[ShownMember]
    body: str
    answers: Sequence[tuple[str, str, str]]
    """Status, description, name of the schema."""
    examples: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ShownDocument:
    """One API. `anchor` is unique on the page."""

    title: str
    anchor: str
    address: str
    about: str
    operations: Sequence[ShownOperation]
    schemas: Sequence[ShownSchema]


def reference_page(documents: Mapping[str, dict[str, Any]]) -> str:
    """The page as HTML. `documents`: OpenAPI documents by address."""
    shown = [_document(f"api{number}", address, each) for number, (address, each) in enumerate(documents.items())]
    version = next(iter(documents.values()))["info"]["version"]
    return _environment().get_template("reference.html").render(documents=shown, version=version)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("gateway.reference"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _document(anchor: str, address: str, document: dict[str, Any]) -> ShownDocument:
    base = document["servers"][0]["url"].rstrip("/")
    return ShownDocument(
        title=document["info"]["title"],
        anchor=anchor,
        address=address,
        about=document["info"]["description"],
        operations=[
            _operation(anchor, method, base + path, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
        ],
        schemas=[_schema(anchor, name, schema) for name, schema in document["components"]["schemas"].items()],
    )


def _operation(anchor: str, method: str, path: str, operation: dict[str, Any]) -> ShownOperation:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    return ShownOperation(
        method=method.upper(),
        path=path,
        anchor=f"{anchor}-{operation['operationId']}",
        about=operation["summary"],
        public=operation.get("security") == [],
        parameters=[
            ShownMember(each["name"], type_of(each["schema"]), each["required"], _about(each), ())
            for each in operation["parameters"]
        ],
        body=_name(content.get("schema", {})),
        answers=[
            (status, answer["description"], _name(answer.get("content", {}).get("application/json", {})["schema"]))
            for status, answer in operation["responses"].items()
        ],
        examples={name: _json(each["value"]) for name, each in content.get("examples", {}).items()},
    )


def _schema(anchor: str, name: str, schema: dict[str, Any]) -> ShownSchema:
    forms = schema.get("anyOf", [schema])
    variants = [
        [
            ShownMember(member, type_of(each), member in form.get("required", ()), _about(each), _names_in(each))
            for member, each in form.get("properties", {}).items()
        ]
        for form in forms
    ]
    return ShownSchema(name, f"{anchor}-{name}", schema.get("description", ""), variants)


def type_of(schema: Mapping[str, Any]) -> str:
    """A schema's type in a few words, such as "integer, 1 to 20" or "array of Message"."""
    if name := _name(schema):
        return name
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(type_of(each) for each in schema["anyOf"] if each.get("type") != "null"))
    if "enum" in schema:
        values = [orjson.dumps(each).decode() for each in schema["enum"]]
        return " | ".join(values[:_MAX_VALUES] + ["…"] * (len(values) > _MAX_VALUES))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"array of {type_of(schema['items'])}"
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f"{kind}, {low} to {high}"
    if low is not None:
        return f"{kind}, from {low}"
    return kind


def _about(schema: Mapping[str, Any]) -> str:
    """The description of a member, or of the form of it that is not null."""
    if "description" in schema:
        return str(schema["description"])
    return next((about for each in schema.get("anyOf", ()) if (about := _about(each))), "")


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).removeprefix(_PREFIX)


def _names_in(schema: Mapping[str, Any]) -> list[str]:
    """The named schemas that a member consists of."""
    if name := _name(schema):
        return [name]
    inner = [*schema.get("anyOf", ()), *([schema["items"]] if "items" in schema else [])]
    return list(dict.fromkeys(name for each in inner for name in _names_in(each)))


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
