"""Memory that serving does not need: not taken, or given back after the start."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_SMAPS = Path("/proc/self/smaps")
_MADV_DONTNEED = 4

DATA_FRAMES = ("pandas", "pyarrow")
"""What the ClickHouse drivers import to answer in kinds of tables that nobody here asks them for: 40 MiB."""


@contextlib.contextmanager
def collecting_nothing() -> Iterator[None]:
    """Without collections of garbage. What imports and loading make mostly stays: they would walk through it again and
    again. Where one is within another, they are on again after the inner one."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def block_imports(modules: Iterable[str]) -> None:
    """Have imports of these fail in this process from now on, as where they are not installed.

    For what others import only because they find it. A module that is imported already stays.
    """
    for name in modules:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # Python's own way to say so


def trim_after_startup() -> None:
    """Give back what is free of the heap, and let pages of libraries go that nobody has written.

    Importing walks through hundreds of megabytes of libraries (symbols, relocations, what runs once), of which serving
    touches a part. Pages come back from the page cache as they are touched. To be called while no other thread loads
    a library. A no-op where there is no glibc, or no /proc.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))
    if not (_SMAPS.exists() and hasattr(libc, "madvise")):
        return
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in untouched_mappings(_SMAPS.read_text(encoding="utf-8", errors="replace")):
        libc.madvise(start, end - start, _MADV_DONTNEED)


def untouched_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Addresses [start, end) of what is mapped from libraries, read-only, and holds no page but the file's own."""
    words: list[str] = []
    for line in smaps.splitlines():
        fields = line.split()
        if not fields[0].endswith(":"):
            words = fields
        elif fields[:2] == ["Anonymous:", "0"] and len(words) == 6 and ".so" in words[5]:
            bounds, rights = words[:2]
            if rights[1] == "-" and rights[3] == "p":
                start, end = (int(address, 16) for address in bounds.split("-"))
                yield start, end
