"""Prefixes that a client has sent to a worker, as an estimate of what is in the worker's prefix cache."""

from collections import OrderedDict
from collections.abc import Sequence

CHUNK_TOKENS = 64
"""Prefixes are known in steps of this many tokens: four KV blocks."""


class PrefixIndex:
    """The prefixes of the last `capacity_tokens` tokens that were sent, in chunks. Least recently used ones go first.

    It knows what one client has sent, and nothing of evictions: an estimate. Prefixes of different salts or adapters
    are different. Not thread-safe.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = max(capacity_tokens // CHUNK_TOKENS, 1)
        self._chunks: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """The length of the longest known prefix, of a prompt with these `prefix_keys`."""
        known = 0
        for key in keys:
            if key not in self._chunks:
                break
            known += 1
        return known * CHUNK_TOKENS

    def add(self, keys: Sequence[int]) -> None:
        """A prompt with these keys was sent."""
        for key in reversed(keys):  # the beginning is the most recently used: without it the rest is useless
            self._chunks[key] = None
            self._chunks.move_to_end(key)
        while len(self._chunks) > self._capacity:
            self._chunks.popitem(last=False)

    def clear(self) -> None:
        """The worker has lost its cache."""
        self._chunks.clear()


def prefix_keys(token_ids: Sequence[int], salt: bytes, adapter: str | None) -> list[int]:
    """A key for each prefix of a prompt that ends with a chunk, each from the one before it."""
    key, keys = hash((salt, adapter)), []
    for start in range(0, len(token_ids) - CHUNK_TOKENS + 1, CHUNK_TOKENS):
        key = hash((key, *token_ids[start : start + CHUNK_TOKENS]))
        keys.append(key)
    return keys
