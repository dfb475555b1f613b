"""The hashes of a request's blocks. Each full block is hashed once, as tokens are append-only."""

import asyncio
from collections.abc import Sequence

from engine.config import BLOCK_TOKENS
from engine.memory.hashing import Extra, adapter_extra, block_hash, salt_extra
from engine.request import Request

HASHED_TOGETHER = 128
"""Blocks hashed without yielding: about 0.3 ms on the event loop."""


def extend_hashes(request: Request, count: int) -> None:
    """Compute the missing hashes of the request's first `count` blocks, all of which are full."""
    known, tokens = request.block_hashes, request.tokens
    for start in range(len(known) * BLOCK_TOKENS, count * BLOCK_TOKENS, BLOCK_TOKENS):
        block = tokens[start : start + BLOCK_TOKENS]
        if known:
            known.append(block_hash(known[-1], block))
        else:
            known.append(block_hash(None, block, _extras(request)))


async def hash_prompts(requests: Sequence[Request]) -> None:
    """Hash the prompt that the choices of one call share, before they are submitted.

    It runs on the event loop in small parts. Otherwise a step would do it while all running requests wait.
    """
    first, *others = requests
    blocks = first.prompt_tokens // BLOCK_TOKENS
    for end in range(HASHED_TOGETHER, blocks, HASHED_TOGETHER):
        extend_hashes(first, end)
        await asyncio.sleep(0)
    extend_hashes(first, blocks)
    for other in others:
        assert _extras(other) == _extras(first), f"{other.id} and {first.id} belong to different caches"
        other.block_hashes = first.block_hashes.copy()


def _extras(request: Request) -> list[Extra]:
    """Inputs of the KV of a request, and of its place, other than its tokens."""
    return extras_of(request.salt, None if request.adapter is None else request.adapter.digest)


def extras_of(salt: bytes, adapter: str | None) -> list[Extra]:
    """Inputs of the hash of a prompt's first block other than its tokens. `adapter`: its digest."""
    extras = [salt_extra(salt)] if salt else []
    return extras if adapter is None else [*extras, adapter_extra(adapter)]
