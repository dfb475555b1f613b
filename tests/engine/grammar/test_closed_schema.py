"""An object that names its members has no others, unless its author says so or needs them."""

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.closed_schema import closed_schema

A = {"type": "object", "properties": {"a": {"type": "integer"}}}
B = {"type": "object", "properties": {"b": {"type": "integer"}}}
CLOSED_A = A | {"additionalProperties": False}
CLOSED_B = B | {"additionalProperties": False}


def members(**schemas: Any) -> dict[str, Any]:
    return {"type": "object", "properties": schemas, "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "closed"),
    [
        (A, CLOSED_A),
        ({"properties": {}}, {"properties": {}, "additionalProperties": False}),
        (A | {"type": ["object", "null"]}, CLOSED_A | {"type": ["object", "null"]}),
        (members(x=A, y={"type": "array", "items": B}), members(x=CLOSED_A, y={"type": "array", "items": CLOSED_B})),
        ({"anyOf": [A, {"type": "null"}, B]}, {"anyOf": [CLOSED_A, {"type": "null"}, CLOSED_B]}),
        ({"allOf": [A]}, {"allOf": [CLOSED_A]}),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, {"$ref": "#/$defs/A", "$defs": {"A": CLOSED_A}}),
        (A | {"anyOf": [{"required": ["a"]}, {}]}, CLOSED_A | {"anyOf": [{"required": ["a"]}, {}]}),
        (A | {"patternProperties": {"^x": A}}, CLOSED_A | {"patternProperties": {"^x": CLOSED_A}}),
        (
            A | {"additionalProperties": A},
            A | {"additionalProperties": CLOSED_A},
        ),
    ],
)
def test_objects_are_closed(schema: Any, closed: Any) -> None:
    before = json.dumps(schema)
    assert closed_schema(schema) == closed
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"type": "object"},
        {"type": "object", "patternProperties": {"^x": {}}},
        A | {"additionalProperties": True},
        A | {"additionalProperties": {"type": "integer"}},
        A | {"unevaluatedProperties": True},
        A | {"required": ["a", "b"]},
        A | {"minProperties": 2},
        {"allOf": [A, B]},
        A | {"allOf": [B]},
        A | {"oneOf": [B, {"properties": {"c": {}}}]},
        A | {"if": B, "then": B},
        {
            "allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/C"}],
            "$defs": {"A": A, "C": {"$ref": "#/$defs/B"}, "B": B},
        },
        {"const": A},
        {"enum": [A]},
        {"default": A},
        {"not": A},
        {"not": {"items": {"$ref": "#/$defs/A"}}, "$defs": {"A": A}},
        A | {"$ref": "#"},
        {"allOf": [A, {"$ref": "#"}, B]},
    ],
)
def test_objects_stay_open(schema: Any) -> None:
    assert closed_schema(schema) == schema


def test_members_named_as_keywords_are_members() -> None:
    schema = {"type": "object", "properties": {"const": A, "properties": A, "not": A}}
    assert closed_schema(schema) == members(**{"const": CLOSED_A, "properties": CLOSED_A, "not": CLOSED_A})


def test_a_long_chain_of_references_takes_linear_time() -> None:
    """With 20,000 of them, time that grew with the square would be minutes."""
    count = 20_000
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(count)}
    schema = {"$ref": "#/$defs/d0", "$defs": defs | {f"d{count}": A}}
    assert closed_schema(schema)["$defs"][f"d{count}"] == CLOSED_A


LEAVES = st.sampled_from([{}, {"type": "integer"}, {"type": "object"}, True, {"$ref": "#/$defs/X"}, {"$ref": "#"}])


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "additionalProperties": st.one_of(st.booleans(), inner),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
            "minProperties": st.integers(0, 3),
            "allOf": some,
            "anyOf": some,
            "items": inner,
            "then": inner,
            "not": inner,
        },
    )


SCHEMAS = st.recursive(LEAVES, compound, max_leaves=8)
INSTANCES = st.recursive(
    st.sampled_from([0, "x"]),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(SCHEMAS, SCHEMAS, INSTANCES)
def test_an_instance_of_the_closed_schema_is_one_of_the_schema(schema: Any, other: Any, instance: Any) -> None:
    whole = {"anyOf": [schema], "$defs": {"X": other}}
    try:
        accepted = jsonschema.Draft202012Validator(closed_schema(whole)).is_valid(instance)
        if accepted:
            assert jsonschema.Draft202012Validator(whole).is_valid(instance)
    except RecursionError:  # a schema that refers to itself without end
        pass
