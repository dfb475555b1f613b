"""Whether this machine's GPU can compute: its requirements by name, then a self-test of the kernels on it.

torch is imported only where there is a driver, as that takes a second and 130 MiB.
"""

import ctypes
import logging
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec
from typing import NamedTuple

from kernels.weights import ModelPart

logger = logging.getLogger(__name__)

_CUDA_DRIVER = "libcuda.so.1"
_INSTALL = "pip install 'turnpike[gpu]'"


class Version(NamedTuple):
    """A version of CUDA, or the compute capability of a GPU."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


LEAST_CAPABILITY = Version(8, 0)
"""The first with tensor cores for bfloat16."""
FLOATS8_CAPABILITY = Version(8, 9)
"""The first with instructions for e4m3."""


def missing_for_cuda() -> str | None:
    """The requirement that is missing to run kernels on a GPU; None if all are met."""
    if not has_cuda_driver():
        return f"a GPU and its driver: there is no {_CUDA_DRIVER} here"
    if find_spec("torch") is None:
        return f"torch: {_INSTALL}"
    import torch

    if not torch.cuda.is_available():
        return _missing_for_torch(_version(torch.version.cuda), cuda_driver_version(), str(torch.__version__))
    if find_spec("triton") is None:
        return f"triton: {_INSTALL}"
    capability = Version(*torch.cuda.get_device_capability())
    if capability < LEAST_CAPABILITY:
        name = torch.cuda.get_device_name()
        return f"a GPU of compute capability {LEAST_CAPABILITY} or more: {name} has {capability}"
    return None


def missing_for_floats8() -> str | None:
    """The requirement that a usable GPU misses to compute in e4m3; None if it does."""
    import torch

    capability = Version(*torch.cuda.get_device_capability())
    if capability >= FLOATS8_CAPABILITY:
        return None
    return f"a GPU of compute capability {FLOATS8_CAPABILITY} or more: {torch.cuda.get_device_name()} has {capability}"


@lru_cache(maxsize=1)
def cuda_flaw() -> str | None:
    """The part that is missing to use the GPU of this machine: a requirement, or kernels that pass their self-test, in
    which every kind of them computes on it and is compared with its definition; None if nothing is.

    Determined once a process: about a second, and half a minute of compilation where Triton's cache is empty. Warns
    where there is a driver and the GPU is not usable.
    """
    flaw = missing_for_cuda() or _self_test_failure()
    if flaw is not None and has_cuda_driver():
        logger.warning("no GPU is used: that needs %s", flaw)
    return flaw


@lru_cache
def part_flaw(part: ModelPart) -> str | None:
    """The kernels that a usable GPU misses to compute a part of a model: those that pass their self-test on it; None if
    it has them. Determined once a process."""
    import torch

    from kernels.triton.self_test import part_failure_on

    failure = part_failure_on(part, torch.device("cuda", torch.cuda.current_device()))
    return None if failure is None else f"kernels for {part} that pass their self-test on it: {failure}"


def _self_test_failure() -> str | None:
    import torch

    from kernels.triton.self_test import failure_on

    failure = failure_on(torch.device("cuda", torch.cuda.current_device()))
    return None if failure is None else f"kernels that pass their self-test on it: {failure}"


def has_cuda_driver() -> bool:
    """Whether there is a driver."""
    with suppress(OSError):
        ctypes.CDLL(_CUDA_DRIVER)
        return True
    return False


def cuda_driver_version() -> Version | None:
    """The newest CUDA that the driver supports; None if it does not tell."""
    version = ctypes.c_int()
    with suppress(OSError, AttributeError):
        if ctypes.CDLL(_CUDA_DRIVER).cuDriverGetVersion(ctypes.byref(version)) == 0:
            return Version(version.value // 1000, version.value % 1000 // 10)
    return None


def _missing_for_torch(built_for: Version | None, driver: Version | None, torch_version: str) -> str:
    """The reason that torch finds no GPU. Within one major version any driver runs any CUDA."""
    if built_for is None:
        return f"a torch that is built for CUDA, and {torch_version} is not: {_INSTALL}"
    if driver is not None and driver.major < built_for.major:
        return (
            f"a driver for CUDA {built_for.major}: torch {torch_version} is built for CUDA {built_for}, and the driver "
            f"here supports CUDA {driver}; update the driver, or install a torch that is built for CUDA {driver.major}"
        )
    known = "" if driver is None else f", though the driver supports CUDA {driver}"
    return f"a GPU: torch {torch_version}, built for CUDA {built_for}, finds none here{known}"


def _version(text: str | None) -> Version | None:
    if text is None:
        return None
    major, minor = text.split(".")[:2]
    return Version(int(major), int(minor))
