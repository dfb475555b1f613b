"""Closes the objects of a JSON schema, so that a model cannot invent members.

By the JSON Schema specification (2020-12, core, section 10.3.2.3) an object may have further members unless
`additionalProperties` forbids them. Authors of schemas seldom state it, and a model that may invent members does.
XGrammar's `strict_mode`, and so vLLM, closes such objects, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple
from urllib.parse import unquote

_MEMBERS = "properties"
_STATED = ("additionalProperties", "unevaluatedProperties")
"""Keywords by which an author decides about further members."""

_BY_NAME = (_MEMBERS, "patternProperties", "$defs", "definitions", "dependentSchemas")
_LITERAL = ("const", "enum", "default", "examples")
_CONDITIONS = ("not", "if")
"""Keywords with schemas that an instance need not match. To close these would change what the others mean."""


def closed_schema(schema: Any) -> Any:
    """A copy of the schema in which an object that states `properties`, and is silent about further members, has no
    further members. Every instance of the copy is an instance of the schema.

    An object stays open where closing would leave nothing that matches: if it requires more members than it names, and
    if several schemas state the members of one object together (`allOf`, or `properties` next to `anyOf`).
    """
    return _copied(schema, _open_schemas(schema))


def _copied(schema: Any, left_open: set[int]) -> Any:
    """`left_open`: ids of the schemas that are not closed."""
    if isinstance(schema, list):
        return [_copied(each, left_open) for each in schema]
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _BY_NAME and isinstance(value, dict):
            copy[keyword] = {name: _copied(each, left_open) for name, each in value.items()}
        elif keyword in (*_LITERAL, *_CONDITIONS):
            copy[keyword] = value
        else:
            copy[keyword] = _copied(value, left_open)
    if id(schema) not in left_open and _may_be_closed(schema):
        copy[_STATED[0]] = False
    return copy


def _may_be_closed(schema: Mapping[str, Any]) -> bool:
    named = schema.get(_MEMBERS)
    if not isinstance(named, dict) or any(keyword in schema for keyword in _STATED):
        return False
    required, least = schema.get("required"), schema.get("minProperties")
    if isinstance(least, int | float) and least > len(named):
        return False
    return "patternProperties" in schema or not isinstance(required, list) or set(map(str, required)) <= named.keys()


class _Applied(NamedTuple):
    """The schemas in a schema. `parts`: groups of those that apply to the same instance, of each group one or all.
    `nested`: those of members and items, and definitions. `conditions`: those that an instance need not match."""

    schema: dict[str, Any]
    parts: list[list[dict[str, Any]]]
    nested: list[dict[str, Any]]
    conditions: list[dict[str, Any]]


def _open_schemas(root: Any) -> set[int]:
    """Ids of the schemas that state the members of an object together with others, and of those in conditions. Takes
    time linear in the size of the schema."""
    applied = _all_applied(root)
    stating = _stating(applied)
    left_open = set[int]()
    conditional = [each for known in applied.values() for each in known.conditions]
    while conditional:
        each = conditional.pop()
        if id(each) not in left_open:
            left_open.add(id(each))
            _, parts, nested, conditions = applied[id(each)]
            conditional += [*chain.from_iterable(parts), *nested, *conditions]
    together = [each.schema for each in applied.values() if _states_together(each, stating)]
    seen = set[int]()
    while together:
        each = together.pop()
        if id(each) not in seen:
            seen.add(id(each))
            together += chain.from_iterable(applied[id(each)].parts)
    return left_open | seen


def _states_together(applied: _Applied, stating: set[int]) -> bool:
    """Whether several schemas state the members of one object."""
    groups = sum(any(id(each) in stating for each in part) for part in applied.parts)
    return groups + (_MEMBERS in applied.schema) > 1


def _stating(applied: Mapping[int, _Applied]) -> set[int]:
    """Ids of the schemas that have `properties`, or apply one that has to the same instance."""
    users = defaultdict[int, list[int]](list)
    for user, each in applied.items():
        for part in chain.from_iterable(each.parts):
            users[id(part)].append(user)
    stating = set[int]()
    waiting = [key for key, each in applied.items() if _MEMBERS in each.schema]
    while waiting:
        key = waiting.pop()
        if key not in stating:
            stating.add(key)
            waiting += users[key]
    return stating


def _all_applied(root: Any) -> dict[int, _Applied]:
    """The schemas in each schema, by its id."""
    found: dict[int, _Applied] = {}
    waiting = _dicts([root])
    while waiting:
        schema = waiting.pop()
        if id(schema) in found:
            continue
        parts = [_dicts(part) for part in _parts(schema, root)]
        conditions = _dicts(schema.get(keyword) for keyword in _CONDITIONS)
        found[id(schema)] = applied = _Applied(schema, parts, _dicts(_nested(schema)), conditions)
        waiting += [*chain.from_iterable(parts), *applied.nested, *conditions]
    return found


def _parts(schema: Mapping[str, Any], root: Any) -> Iterator[Iterable[Any]]:
    yield from ([each] for each in _listed(schema, "allOf"))
    for keyword in ("anyOf", "oneOf"):
        yield _listed(schema, keyword)
    yield [schema.get("then"), schema.get("else")]
    dependent = schema.get("dependentSchemas")
    yield dependent.values() if isinstance(dependent, dict) else ()
    yield [_target(schema.get("$ref"), root)]


def _nested(schema: Mapping[str, Any]) -> Iterator[Any]:
    for keyword, value in schema.items():
        if keyword in _BY_NAME and keyword != "dependentSchemas" and isinstance(value, dict):
            yield from value.values()
        elif keyword in ("items", "additionalItems", "prefixItems", "contains", *_STATED):
            yield from value if isinstance(value, list) else [value]


def _target(reference: Any, root: Any) -> Any:
    """The schema of a local reference, a JSON pointer (RFC 6901); None for any other."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found = root
    for name in filter(None, unquote(reference[1:]).split("/")):
        name = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list):
            found = next((each for index, each in enumerate(found) if str(index) == name), None)
        else:
            return None
    return found


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _dicts(values: Iterable[Any]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]
