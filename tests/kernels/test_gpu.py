"""Messages that name what is missing to use a GPU: driver, torch, CUDA, compute capability, Triton."""

import sys
from collections.abc import Callable

import pytest

from kernels import gpu
from kernels.gpu import Version, cuda_driver_version, has_cuda_driver, missing_for_cuda

Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Sets what a machine has: the newest CUDA of its driver and that of its torch, and its GPU."""

    def has(driver: Version | None, torch_cuda: str | None, capability: tuple[int, int] | None) -> None:
        monkeypatch.setattr(gpu, "has_cuda_driver", lambda: True)
        monkeypatch.setattr(gpu, "cuda_driver_version", lambda: driver)
        monkeypatch.setattr("torch.version.cuda", torch_cuda)
        monkeypatch.setattr("torch.__version__", "2.13.0")
        monkeypatch.setattr("torch.cuda.is_available", lambda: capability is not None)
        monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Some GPU")

    return has


def test_a_torch_for_the_cpu(machine: Machine) -> None:
    machine(Version(13, 0), None, None)
    assert missing_for_cuda() == "a torch that is built for CUDA, and 2.13.0 is not: pip install 'turnpike[gpu]'"


def test_a_driver_that_is_older_than_torch(machine: Machine) -> None:
    machine(Version(12, 8), "13.0", None)
    assert missing_for_cuda() == (
        "a driver for CUDA 13: torch 2.13.0 is built for CUDA 13.0, and the driver here supports CUDA 12.8; "
        "update the driver, or install a torch that is built for CUDA 12"
    )


@pytest.mark.parametrize(("driver", "known"), [(Version(13, 1), ", though the driver supports CUDA 13.1"), (None, "")])
def test_no_gpu_beside_a_driver(machine: Machine, driver: Version | None, known: str) -> None:
    machine(driver, "13.0", None)
    assert missing_for_cuda() == f"a GPU: torch 2.13.0, built for CUDA 13.0, finds none here{known}"


def test_a_driver_of_the_same_major_version_is_no_flaw(machine: Machine) -> None:
    machine(Version(12, 2), "12.9", None)
    missing = missing_for_cuda()
    assert missing is not None
    assert missing.startswith("a GPU:")


@pytest.mark.parametrize(("capability", "served"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_capabilities(machine: Machine, capability: tuple[int, int], served: bool) -> None:
    pytest.importorskip("triton")
    machine(Version(13, 0), "13.0", capability)
    expected = None if served else "a GPU of compute capability 8.0 or more: Some GPU has 7.5"
    assert missing_for_cuda() == expected


@pytest.mark.parametrize(("library", "there"), [("libc.so.6", True), ("libturnpike-nobody-has.so.1", False)])
@pytest.mark.skipif(sys.platform != "linux", reason="names of libraries are Linux's")
def test_a_driver_is_a_library(library: str, there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_CUDA_DRIVER", library)
    assert has_cuda_driver() == there
    assert cuda_driver_version() is None  # neither says a version
