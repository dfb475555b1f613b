"""A plugin of pytest for `make sanitize`: tests run on the library that was built with sanitizers."""

from pathlib import Path

from kernels.cpu.native import library

SUFFIX = ".sanitized.so"


def pytest_configure() -> None:
    """Before any test asks for the library.

    Raises:
        RuntimeError: there is no such library, or it cannot be loaded: tests of nothing would pass.
    """
    library.EXTENSION_SUFFIXES = [SUFFIX]  # type: ignore[attr-defined]
    library.load.cache_clear()
    loaded = library.load()
    path = Path(library.__file__).with_name(f"_kernels{SUFFIX}")
    if loaded is None or loaded._name != str(path):
        raise RuntimeError(f"{path} was not loaded: make sanitize builds it")
