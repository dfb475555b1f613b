"""What computes is decided by what there is, where it can be: not by a clock."""

import pytest
import torch

from kernels.cpu import native, probe
from kernels.cpu.native import Level


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The threads that torch and the library were told, in place of telling them."""
    told: dict[str, int] = {}
    monkeypatch.setattr("torch.set_num_threads", lambda threads: told.update(torch=threads))
    monkeypatch.setattr(native, "start", lambda threads: told.update(native=threads))
    return told


@pytest.mark.parametrize("level", [Level.AVX2, Level.AVX512_BF16, Level.AVX512_FLOAT, Level.AMX])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_library_computes_where_it_has_kernels(
    level: Level, dtype: torch.dtype | None, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "level", lambda: level)
    found = probe.probe(dtype, 3)
    assert (found.dtype, found.products, found.probe_us) == (torch.bfloat16, "native", {})
    assert told == {"torch": 1, "native": 3}


@pytest.mark.parametrize(("level", "dtype"), [(None, None), (Level.PORTABLE, None), (Level.AVX512_BF16, torch.float32)])
def test_torch_computes_elsewhere(
    level: Level | None, dtype: torch.dtype | None, told: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "level", lambda: level)
    found = probe.probe(dtype, 2)
    assert found.products in ("onednn", "plain")
    assert dtype is None or found.dtype == dtype
    assert told == {"torch": 2}
