"""Runs compression on the event loop or on a thread, by size."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

A = TypeVar("A")
T = TypeVar("T")

MAX_INLINE_BYTES = 32 * 1024
"""Values up to this size are processed on the event loop, larger ones on a thread."""


async def offload_large(size: int, work: Callable[[A], T], value: A) -> T:
    """Run `work(value)`; on a thread if `size` bytes would block the event loop for too long."""
    return work(value) if size <= MAX_INLINE_BYTES else await asyncio.to_thread(work, value)
