"""Torch's number of threads and its timed choices, where it computes on a processor."""

import pytest
import torch

from kernels.cpu import probe


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records calls to `torch.set_num_threads` instead of making them."""
    told: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", told.append)
    return told


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16])
def test_what_is_given_is_kept(dtype: torch.dtype | None, told: list[int]) -> None:
    found = probe.probe(dtype, 2)
    assert found.products in ("onednn", "plain")
    assert found.dtype == (dtype or found.dtype)
    assert found.dtype in (torch.float32, torch.bfloat16)
    assert (found.threads, told) == (2, [2])
    assert found.probe_us


def test_threads_are_as_many_as_cores(monkeypatch: pytest.MonkeyPatch, told: list[int]) -> None:
    monkeypatch.setattr(probe, "usable_cores", lambda: 7)
    assert probe.probe(torch.float32).threads == 7
    assert told == [7]
