"""JSON schemas of tests."""


def nested(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"type": "null"}
    for _ in range(levels - 1):
        schema = {"items": schema}
    return schema
