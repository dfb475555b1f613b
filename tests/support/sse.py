"""Server-sent events as clients read them, after a check of their frame."""

import orjson


def chunks(response) -> list:
    """The chunks of a stream, after a check of its frame."""
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [orjson.loads(event.removeprefix("data: ")) for event in events[:-2]]


def events(text: str) -> list[dict]:
    """The data of each event, after a check that its name is its type."""
    seen = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        seen.append(orjson.loads(data.removeprefix("data: ")))
        assert name == f"event: {seen[-1]['type']}"
    return seen
