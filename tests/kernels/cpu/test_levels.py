"""Which kernels a processor is given, and which can be asked for."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels.cpu import native
from kernels.cpu.native import Level
from kernels.cpu.native.library import load
from tests.kernels.cpu.paged import levels

library = load()
if library is None:
    pytest.skip("the native library is not built: make install, with a C++ compiler", allow_module_level=True)

PROCESSOR = Path("/proc/cpuinfo")
SOURCES = Path(native.__file__).parent / "src"


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    usual = library.tp_level()
    yield
    library.tp_use_level(usual)


def test_what_a_processor_has_not_is_not_used() -> None:
    most = levels()[-1]
    assert library.tp_use_level(max(Level) + 1) == most
    assert library.tp_use_level(most) == library.tp_level() == most
    assert library.tp_use_level(-1) == library.tp_level() == Level.PORTABLE


def test_a_processor_is_asked_for_all_that_sources_are_compiled_for() -> None:
    """Virtual machines hide single extensions of a processor."""
    asked = set(re.findall(r'cpu_supports\("(\w+)"\)', (SOURCES / "levels/processor.cpp").read_text(encoding="utf-8")))
    for source in SOURCES.glob("**/*.cpp"):
        for target in re.findall(r'#pragma GCC target\("(.+)"\)', source.read_text(encoding="utf-8")):
            assert set(target.split(",")) <= asked, source.name


@pytest.mark.skipif(Level.AVX512_FLOAT not in levels(), reason="this processor has no AVX-512 with bf16")
def test_cores_of_intel_multiply_float32_numbers() -> None:
    """Where there are no tiles. Others multiply pairs of bf16 numbers, and can be asked for the same."""
    if Level.AMX in levels():
        expected = Level.AMX
    else:
        expected = Level.AVX512_FLOAT if "GenuineIntel" in PROCESSOR.read_text() else Level.AVX512_BF16
    question = f"import ctypes; print(ctypes.CDLL({library._name!r}).tp_level())"
    told = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=True)
    assert int(told.stdout) == expected
