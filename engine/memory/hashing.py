"""The hash of a KV block's content: a sha256 chain over everything that the KV depends on (prefix hash chain, as in
vLLM's automatic prefix caching).

A block's KV depends on its own tokens and on all tokens before them, so its hash covers its parent's hash. A
cryptographic hash is needed, because a collision that an attacker can find would expose one tenant's context to
another.
"""

from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from engine.config import BLOCK_TOKENS

_ROOT = sha256(b"turnpike kv block chain, version 1").digest()
_TOKENS = Struct(f"<{BLOCK_TOKENS}I")
_EXTRA_LENGTHS = Struct("<II")


class Extra(NamedTuple):
    """An input of the hash other than tokens, on which the KV depends or which separates caches.

    `tag`: its kind, so that an adapter's name and a salt of the same bytes give different hashes.
    """

    tag: str
    value: bytes


def salt_extra(salt: bytes) -> Extra:
    """Separates the prefix caches of tenants. Needed in a chain's first block only, as later blocks inherit it."""
    return Extra("salt", salt)


def adapter_extra(digest: str) -> Extra:
    """Separates KV that was computed through an adapter, known by its content. Needed in a chain's first block only."""
    return Extra("adapter", digest.encode())


def block_hash(parent: bytes | None, tokens: Sequence[int], extras: Sequence[Extra] = ()) -> bytes:
    """The 32-byte hash of the block of `tokens` that follows the block with the hash `parent` (None: the first block).

    Injective up to sha256 collisions: the message is the parent (32 bytes), the tokens (4 bytes each), then each extra
    after its two lengths. Fixed widths keep (1, 23) and (12, 3) apart.

    Raises:
        struct.error: `tokens` is not exactly one block, or a token is not in [0, 2**32).
    """
    message = (parent or _ROOT) + _TOKENS.pack(*tokens)
    for tag, value in extras:
        tag_bytes = tag.encode()
        message += _EXTRA_LENGTHS.pack(len(tag_bytes), len(value)) + tag_bytes + value
    return sha256(message).digest()
