"""Files that are on the disk when a call returns. Functions block: call them on a thread."""

import os
from pathlib import Path


def write_all(descriptor: int, content: bytes, offset: int) -> None:
    """Write all of `content` from `offset` on. Raises: OSError."""
    left = memoryview(content)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
