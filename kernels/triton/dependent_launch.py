"""Programmatic dependent launch (CUDA C++ Programming Guide; PTX ISA, griddepcontrol): a kernel's programs are placed
on the device while those of the kernel before it still run, and wait there, so that less time passes between the two.

Every kernel that is launched so calls `wait_for_predecessor` in every program, before it reads or writes any memory
that a kernel writes. So, whatever buffers kernels share:

- a kernel does not begin before the one before it has ended and its stores are visible, as in a stream without this:
  neither its loads nor its stores can be early (read after write, write after read, write after write);
- as each program waits, a kernel ends after the one before it has. What waits for one kernel has waited for all
  before it;
- a kernel lets the next one be placed after its own wait. So one kernel at a time is ahead of those that compute. Its
  programs take no place from them: they are placed when all of those have been.

Kernels that are launched as usual, by torch or here, need not wait: they begin when all before them has ended. Before
its wait a kernel may only ask for constants such as weights to be brought into the cache.

Off until it has been measured on a GPU. Hopper and later GPUs have it; kernels for others, and interpreted ones, are
compiled without the two instructions, which do nothing in a kernel that is launched as usual.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton import knobs
from triton.language import core
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

DEPENDENT_LAUNCH = False
"""Whether kernels are launched so, on a GPU that has it."""

_LEAST_CAPABILITY = (9, 0)
_COMPILED = tl.constexpr(not knobs.runtime.interpret)
_chosen: ContextVar[bool] = ContextVar("dependent launch", default=DEPENDENT_LAUNCH)


@core.builtin
def has_dependent_launch(_semantic: Any = None) -> Any:
    """Whether the GPU that a kernel is compiled for has the instructions."""
    capability = int("".join(filter(str.isdigit, _semantic.builder.options.arch)))
    return tl.constexpr(divmod(capability, 10) >= _LEAST_CAPABILITY)


@triton.jit
def wait_for_predecessor():
    """Wait until the kernel before has ended and its stores are visible; then let the next one be placed."""
    if _COMPILED and has_dependent_launch():
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def prefetch(pointers):
    """Ask for the cache lines of a tensor of pointers to be brought into the L2 cache. Compiled kernels only."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


def launches_dependently() -> bool:
    """Whether kernels are launched so now, on this thread."""
    return _chosen.get() and _is_supported()


def launch_options() -> dict[str, bool]:
    """The options of a launch of a kernel that calls `wait_for_predecessor`."""
    return {"launch_pdl": True} if launches_dependently() else {}


@contextmanager
def dependent_launches(chosen: bool) -> Iterator[None]:
    """Launch kernels so, or not, on this thread."""
    before = _chosen.set(chosen)
    try:
        yield
    finally:
        _chosen.reset(before)


@lru_cache(maxsize=1)
def _is_supported() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= _LEAST_CAPABILITY
