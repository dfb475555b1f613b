"""Constants of the paged KV layout, shared by the allocator and every kernel."""

BLOCK_TOKENS = 16
"""Tokens of KV in one block."""


def int8_block_bytes(kv_heads: int, head_dim: int) -> int:
    """Bytes of one layer of a block in int8: one byte a number, followed by two bytes a scale."""
    return BLOCK_TOKENS * 2 * kv_heads * (head_dim + 2)
