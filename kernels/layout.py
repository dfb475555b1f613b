"""Facts of the KV layout that the engine's allocator and every kernel agree on."""

BLOCK_TOKENS = 16
"""Tokens of KV in one block, everywhere."""
