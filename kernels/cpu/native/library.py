"""The native library, if it is there: its functions, with their types."""

import ctypes
from ctypes import c_int32, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ABI = 1

_POINTER = c_void_p
_SIGNATURES = {
    "tp_level": (c_int32, ()),
    "tp_use_level": (c_int32, (c_int32,)),
    "tp_use_team": (None, (_POINTER, c_int32)),
    "tp_bf16_packed_size": (c_int64, (c_int64, c_int64)),
    "tp_bf16_pack": (None, (_POINTER, c_int64, c_int64, _POINTER)),
    "tp_bf16_linear": (
        None,
        (_POINTER, c_int64, c_int64, _POINTER, c_int64, c_int64, _POINTER, _POINTER, c_int64),
    ),
}


class Level(IntEnum):
    """What of a processor is made use of."""

    PORTABLE = 0
    AVX2 = 1
    AVX512_BF16 = 2


@cache
def load() -> ctypes.CDLL | None:
    """The library, or None where none was built, or of another version of this program. Calls release the GIL."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.exists():
            return _open(path)
    return None


def start(threads: int) -> None:
    """Compute with so many threads from now on: those of torch's OpenMP, where it has one that is found."""
    if (library := load()) is not None:
        library.tp_use_team(_gomp_parallel(), threads)


def level() -> Level | None:
    """What the library makes use of on this processor; None where there is no library."""
    library = load()
    return None if library is None else Level(library.tp_level())


def _open(path: Path) -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(path))
        if library.tp_abi() != ABI:
            return None
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return library


def _gomp_parallel() -> int | None:
    """The address of GOMP_parallel in the libgomp that torch computes with; None where it is not to be found."""
    try:
        loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libgomp" in line}
        if not loaded:
            return None
        path = min(loaded, key=lambda path: ("/torch/" not in path, path))  # others may have brought one, too
        return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, c_void_p).value
    except (OSError, AttributeError):
        return None
