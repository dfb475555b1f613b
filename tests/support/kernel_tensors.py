"""Numbers for the tests of kernels, where the kernels run."""

import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Without a GPU the kernels are interpreted."""

DTYPES = [torch.float32, torch.float16, torch.bfloat16]

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""A few roundings."""


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), atol=tolerance, rtol=tolerance)


def assert_product(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Within some roundings of the row's length."""
    assert actual.dtype == expected.dtype
    error = (actual.double() - expected.double()).norm(dim=1) / expected.double().norm(dim=1).clamp_min(1e-30)
    assert float(error.max()) < TOLERANCE[dtype]
