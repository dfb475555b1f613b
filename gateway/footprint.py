"""Memory that starting took and serving does not need, given back."""

import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path

_SMAPS = Path("/proc/self/smaps")
_MADV_DONTNEED = 4


def leave_the_start_behind() -> None:
    """Give back what is free of the heap, and let pages of libraries go that nobody has written.

    Importing walks through hundreds of megabytes of libraries (symbols, relocations, what runs once), of which serving
    touches a part. Pages come back from the page cache as they are touched. To be called while no other thread loads
    a library. A no-op where there is no glibc, or no /proc.
    """
    gc.collect()
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
