"""The self-test of a GPU passes with the kernels as they are, and fails where one computes something else."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernels.triton import adapter_slots, attention, delta_launch, latents, mixture, norms, ops, self_test
from kernels.triton.self_test import failure_on, part_failure_on
from kernels.triton.self_test_parts import PARTS
from kernels.weights import ModelPart
from tests.support.kernel_tensors import DEVICE, DTYPES

Kernel = Callable[..., Any]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_passes(dtype: torch.dtype) -> None:
    assert failure_on(DEVICE, dtype) is None


def _one_element(wrong: float) -> Callable[[Kernel], Kernel]:
    def broken(kernel: Kernel) -> Kernel:
        def computed(*arguments: Any) -> torch.Tensor:
            result: torch.Tensor = kernel(*arguments)
            result[-1, -1] = wrong
            return result

        return computed

    return broken


@pytest.mark.parametrize("wrong", [100.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("module", "kernel", "said"), [(norms, "rms_norm", "a norm"), (attention, "attend", "attention")]
)
def test_one_wrong_number_fails_it(
    module: Any, kernel: str, said: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, kernel, _one_element(wrong)(getattr(module, kernel)))
    failure = failure_on(DEVICE, torch.float32)
    assert failure is not None
    assert failure.startswith(f"{said} is wrong by")


@pytest.mark.parametrize("part", PARTS)
def test_parts_of_a_model_pass(part: ModelPart) -> None:
    assert part_failure_on(part, DEVICE) is None


@pytest.mark.parametrize(
    ("module", "kernel", "part", "said"),
    [
        (mixture, "mixture", "experts", "a mixture of few tokens"),
        (latents, "attend_latents", "latents", "attention over latents"),
        (delta_launch, "gated_delta", "delta nets", "a delta net"),
        (adapter_slots.AdaptedStep, "add", "adapters", "adapters of few tokens"),
    ],
)
def test_one_wrong_number_of_a_part_fails_it(
    module: Any, kernel: str, part: ModelPart, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, kernel, _one_element(100.0)(getattr(module, kernel)))
    failure = part_failure_on(part, DEVICE, torch.float32)
    assert failure is not None
    assert failure.startswith(f"{said} is wrong by")


def test_another_token_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = ops.sampling.sample
    monkeypatch.setattr(ops.sampling, "sample", lambda logits, columns: draw(logits, columns) ^ 1)
    failure = failure_on(DEVICE, torch.float32)
    assert failure is not None
    assert failure.startswith("a draw is wrong by")


def test_an_error_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")

    monkeypatch.setattr(self_test.TritonOps, "silu_mul", fails)
    assert failure_on(DEVICE, torch.float32) == (
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered"
    )
