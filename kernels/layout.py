"""Facts of the KV layout that the engine's allocator and every kernel agree on."""

BLOCK_TOKENS = 16
"""Tokens of KV in one block, everywhere."""


def int8_block_bytes(kv_heads: int, head_dim: int) -> int:
    """Of one layer of a block in int8: a byte a number and, behind all of these, two a scale."""
    return BLOCK_TOKENS * 2 * kv_heads * (head_dim + 2)
