"""Where values are packed and unpacked."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

MAX_INLINE_BYTES = 32 * 1024
"""Values up to this size are packed and unpacked on the event loop, larger ones on a thread."""


async def offload_large(size: int, work: Callable[[A], T], value: A) -> T:
    """`work(value)`, where a value of this size in bytes does not hold up everybody's streams."""
    return work(value) if size <= MAX_INLINE_BYTES else await asyncio.to_thread(work, value)
