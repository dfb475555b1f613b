"""Finds and loads the native library, and declares its functions."""

import ctypes
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from kernels.cpu.native.abi import ABI, SIGNATURES, Level


@cache
def load() -> ctypes.CDLL | None:
    """The library, or None if it was not built or belongs to another version. Calls release the GIL."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists() and (library := _open(path)) is not None:
            return library
    return None


def start(threads: int) -> None:
    """Set the number of computing threads."""
    if (library := load()) is not None:
        library.tp_use_threads(threads)


def level() -> Level | None:
    """The instruction set that the library uses on this processor; None without a library."""
    library = load()
    return None if library is None else Level(library.tp_level())


def _open(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
        if library.tp_abi() != ABI:
            return None
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library
