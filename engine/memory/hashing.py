"""The name of a KV block's content: a sha256 chain over everything that the KV depends on.

A block's KV depends on its own tokens and on all before them, so its hash covers its parent's. sha256 and not
a faster hash, because a collision that someone can find would show one tenant another's context.
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
    """Something beside the tokens that the KV depends on, or that separates one cache from another.

    The tag says what it is, so that an adapter's name and a salt of the same bytes stay different.
    """

    tag: str
    value: bytes


def salt_extra(salt: bytes) -> Extra:
    """Separates the prefix caches of tenants. It is enough in a chain's first block: the others inherit it."""
    return Extra("salt", salt)


def adapter_extra(name: str) -> Extra:
    """KV computed through an adapter is that adapter's. It is enough in a chain's first block."""
    return Extra("adapter", name.encode())


def block_hash(parent: bytes | None, tokens: Sequence[int], extras: Sequence[Extra] = ()) -> bytes:
    """The 32-byte name of the block of `tokens` that follows the block named `parent` (None: the first one).

    Injective up to sha256: the message is the parent (32 bytes), the tokens (4 bytes each), then each extra with
    its two lengths before it. Digits of text in place of fixed widths would let (1, 23) meet (12, 3).

    Raises:
        struct.error: `tokens` is not exactly one block, or a token is not in [0, 2**32).
    """
    message = (parent or _ROOT) + _TOKENS.pack(*tokens)
    for tag, value in extras:
        tag_bytes = tag.encode()
        message += _EXTRA_LENGTHS.pack(len(tag_bytes), len(value)) + tag_bytes + value
    return sha256(message).digest()
