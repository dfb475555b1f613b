"""Formats OpenAI's list of embeddings, item by item as they arrive."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from gateway.formats.openai.embedding_schema import Encoding
from gateway.generation.usage import UsageTotal


def item(index: int, embedding: bytes, encoding: Encoding) -> bytes:
    """One item of `data`. `embedding`: little-endian float32. Numbers have the digits that float32 needs."""
    vector: Any = np.frombuffer(embedding, "<f4") if encoding is Encoding.FLOAT else b64encode(embedding).decode()
    return orjson.dumps({"object": "embedding", "index": index, "embedding": vector}, option=orjson.OPT_SERIALIZE_NUMPY)


def body(items: Sequence[bytes], id: str, model: str, service_tier: str | None, usage: UsageTotal) -> bytes:
    """The whole response in OpenAI's form, with the request's billing id. `usage` omits the completion's members;
    `service_tier` is present if requested."""
    rest: dict[str, Any] = {
        "id": id,
        "model": model,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "total_tokens": usage.total_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
    }
    if service_tier is not None:
        rest["service_tier"] = service_tier
    return b'{"object":"list","data":[%b],%b' % (b",".join(items), orjson.dumps(rest)[1:])
