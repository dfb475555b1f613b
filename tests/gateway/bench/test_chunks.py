from typing import Any

import orjson
import pytest

from gateway.tools.bench.chunks import Chunk, Malformed, read_chunk
from tests.gateway.bench.fake_server import delta, finish, usage


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **fields}]}


@pytest.mark.parametrize(
    ("event", "chunk"),
    [
        (delta(role="assistant", content=""), Chunk()),  # vLLM and OpenAI begin so
        (delta(role="assistant", content="Hi"), Chunk(answers=True)),  # LiteLLM
        (delta(content="Hi"), Chunk(answers=True)),
        (delta(reasoning_content="hm"), Chunk(answers=True)),
        (delta(reasoning="hm"), Chunk(answers=True)),
        (delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), Chunk(answers=True)),
        (delta(content=None, tool_calls=None), Chunk()),
        (choice(text="Hi", finish_reason=None), Chunk(answers=True)),
        (choice(text="", finish_reason="length"), Chunk(ends=True)),
        (choice(text="x", finish_reason="stop"), Chunk(answers=True, ends=True)),
        (finish(), Chunk(ends=True)),
        (usage(5, 7), Chunk(prompt_tokens=5, output_tokens=7)),
        (delta(content="x") | {"usage": None}, Chunk(answers=True)),
        (
            delta(content="x") | {"usage": {"prompt_tokens": 5, "completion_tokens": 1}},
            Chunk(answers=True, prompt_tokens=5, output_tokens=1),
        ),
        ({"choices": None}, Chunk()),
        ({"choices": ["odd"], "usage": {"completion_tokens": True}}, Chunk()),
        ({"error": {"message": "m", "code": "overloaded"}}, Chunk(error="overloaded")),
        ({"error": {"message": "long  story\nhere", "type": None, "code": 500}}, Chunk(error="long story here")),
        ({"error": "no"}, Chunk(error="no")),
        ({"error": {}, "choices": []}, Chunk()),
    ],
)
def test_what_servers_send(event: dict[str, Any], chunk: Chunk) -> None:
    assert read_chunk(orjson.dumps(event)) == chunk


@pytest.mark.parametrize("event", [b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff"])
def test_what_is_no_chunk(event: bytes) -> None:
    with pytest.raises(Malformed):
        read_chunk(event)
