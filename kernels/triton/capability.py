"""Compute capabilities of NVIDIA's GPUs, times ten, and what they have for a program: CUDA C++ Programming Guide,
technical specifications by compute capability."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

HOPPER = 90


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one multiprocessor, which has 64 Ki registers in all of these.

    program_shared_kib: shared memory that a program may have. shared_kib: that all its programs share, of which each
    takes 1 KiB more than it has. warps, programs: the most at once. floats8: there are instructions for e4m3.
    """

    program_shared_kib: int
    shared_kib: int
    warps: int
    programs: int
    floats8: bool = True


LIMITS: Mapping[int, Limits] = {
    80: Limits(163, 164, 64, 32, floats8=False),
    86: Limits(99, 100, 48, 16, floats8=False),
    89: Limits(99, 100, 48, 24),
    HOPPER: Limits(227, 228, 64, 32),
    100: Limits(227, 228, 64, 32),
    120: Limits(99, 100, 48, 24),
}
"""By the capabilities that kernels are compiled for in tests, in ascending order."""


def known_capability(capability: int) -> int:
    """The one of `LIMITS` whose launches fit a GPU: the next below its own, since later ones of a kind have no less."""
    return max((known for known in LIMITS if known <= capability), default=min(LIMITS))


@lru_cache
def capability_of(device: torch.device) -> int:
    """The one of `LIMITS` for a device; Hopper's under the interpreter."""
    if device.type != "cuda":
        return HOPPER
    major, minor = torch.cuda.get_device_capability(device)
    return known_capability(10 * major + minor)
