"""Schemas come from clients: what is read of one is bounded by its size, however its parts refer to one another."""

from typing import Any

from gateway.speech.argument_types import ArgumentTypes

ALTERNATIVES = 20


class Counted(dict[str, Any]):
    """A schema that counts how often its type is asked for, and fails where that is often."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        if key == "type":
            self.asked += 1
            assert self.asked <= 2 * ALTERNATIVES, "the schema is read again and again"
        return super().get(key, default)


def test_a_schema_that_refers_to_itself_many_times_is_read_once() -> None:
    loop = Counted(anyOf=[{"$ref": "#/$defs/loop"} for _ in range(ALTERNATIVES)])
    loop["anyOf"] += [{"type": "integer"}]
    types = ArgumentTypes({"properties": {"count": loop}, "$defs": {"loop": loop}})
    assert types.of("count") == {"integer"}
    assert types.json_of("count", "3") == "3"


def test_alternatives_of_any_depth_are_read() -> None:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(20):
        schema = {"oneOf": [{"type": "null"}, {"allOf": [schema]}]}
    assert ArgumentTypes({"properties": {"on": schema}}).of("on") == {"boolean", "null"}
