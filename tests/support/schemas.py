"""JSON schemas of tests."""

from engine.grammar import GrammarSpec


def nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "null"}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema


BOMB = GrammarSpec.json_schema(
    {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}$"} for i in range(8, 22)]}
)
"""The intersection of these patterns is computed state by state, seconds from 700 bytes: until the time limit, or on a
fast processor until the limit of states."""
