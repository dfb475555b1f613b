"""Weights arrive as they are on the host, whatever the pieces that they are sent in."""

import pytest
import torch

from kernels.triton.uploads import WeightUploads
from tests.support.kernel_tensors import DEVICE, random


@pytest.mark.parametrize("piece_bytes", [16, 48, 1000, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.uint8, torch.float8_e4m3fn])
def test_parts_are_joined(dtype: torch.dtype, piece_bytes: int) -> None:
    parts = [(random(rows, 7, dtype=torch.float32, seed=rows) * 9).to(dtype).cpu() for rows in (5, 1, 12)]
    uploads = WeightUploads(DEVICE, piece_bytes)
    kept = torch.cat([part.view(torch.uint8) for part in parts])
    joined, alone = uploads.joined(parts), uploads.joined(parts[:1])
    for part in parts:
        part.view(torch.uint8).fill_(3)
    assert (joined.shape, joined.dtype, joined.device.type) == ((18, 7), dtype, DEVICE.type)
    assert torch.equal(joined.cpu().view(torch.uint8), kept)
    assert torch.equal(alone.cpu().view(torch.uint8), kept[:5])


def test_columns_of_a_larger_tensor() -> None:
    whole = random(6, 10, dtype=torch.float32).cpu()
    assert torch.equal(
        WeightUploads(DEVICE, 32).joined([whole[:, 2:7], whole[:, 5:]]).cpu(), torch.cat([whole[:, 2:7], whole[:, 5:]])
    )
