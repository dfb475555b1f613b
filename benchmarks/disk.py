"""The disk's own time for a write and an fsync."""

import os
import time
from pathlib import Path

FSYNCS = 200


def fsync_ms(folder: Path) -> list[float]:
    """Of a write of 4 KiB and an fsync, one after another."""
    took = []
    with (folder / "probe").open("wb", buffering=0) as file:
        for _ in range(FSYNCS):
            started = time.perf_counter()
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            took.append((time.perf_counter() - started) * 1e3)
    return took
