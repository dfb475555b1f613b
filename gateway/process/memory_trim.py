"""Reduces memory: skips unneeded imports and returns the memory of the start."""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

_SMAPS = Path("/proc/self/smaps")
_MADV_DONTNEED = 4

DATA_FRAMES = ("pandas", "pyarrow")
"""Optional imports of the ClickHouse drivers for result formats that are not used: 40 MiB."""
TRACEBACK_FRAMES = ("rich",)
"""Optional imports of structlog for tracebacks with values of variables, which no log has: 40 ms."""


@contextlib.contextmanager
def collecting_nothing() -> Iterator[None]:
    """Disable garbage collection. Objects of imports and loading mostly stay alive, so collections would scan them
    repeatedly. Not reentrant: the inner block enables collection at its end."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def block_imports(modules: Iterable[str]) -> None:
    """Make further imports of these modules fail, as if they were not installed.

    For optional dependencies of libraries. A module that is already imported stays.
    """
    for name in modules:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None blocks the import


@contextlib.contextmanager
def without_imports(modules: Iterable[str]) -> Iterator[None]:
    """As `block_imports`, until the end of the block."""
    blocked = [name for name in modules if name not in sys.modules]
    block_imports(blocked)
    try:
        yield
    finally:
        for name in blocked:
            del sys.modules[name]


def trim_after_startup() -> None:
    """Return free heap memory to the system, and drop clean pages of libraries.

    Imports touch hundreds of megabytes of libraries (symbols, relocations, initialization), of which serving uses a
    part. Dropped pages are read from the page cache on the next access. No other thread may load a library during the
    call. No effect without glibc or /proc.
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
    """Address ranges [start, end) of read-only mappings of libraries without anonymous pages."""
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
