"""Kernel variants: each form in which a kernel is compiled and shipped, as data.

A variant is a value, so that several readers can use it: tests compile it for its GPU on machines without one and check
its promises, `kernels.triton.report` prints its facts, and a benchmark on a GPU can start tuning from it. Imports no
triton.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


class Kernel(Protocol):
    """A function under `@triton.jit`, compiled or interpreted."""

    @property
    def arg_names(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """One specialisation of a kernel, and what is promised of its machine code.

    Every argument of the kernel is in exactly one of `signature` and `constexprs`; anything else is a `ValueError`.

    name: unique among what is shipped, such as "decode-bf16-d128".
    signature: types of the arguments passed at launch, in Triton's spelling: "*bf16", "*i64", "i32", "fp32".
    constexprs: values of the arguments that are fixed at compilation. A pointer that is not there (None) and an
        integer that is always 1 (an innermost stride) belong here too, as the launcher specialises on both.
    aligned: arguments of the signature that are multiples of 16: pointers in bytes, integers in what they count. The
        launcher finds this out from the values; only what holds in every call belongs here.
    programs: how many of its programs the launch counts on a multiprocessor to hold at once.
    max_registers: the most that a thread may use; None leaves it to the compiler.
    wide_loads: its bulk of bytes is read from device memory 16 bytes a thread.
    pipelined_loads: its main loop has the next tile's loads in flight while it computes on this one's.
    warpgroup_matmul: its matrix products run on whole warp groups (wgmma), not warp by warp.
    fused_products: a product and a sum may become one instruction, which rounds once.
    """

    name: str
    kernel: Kernel
    signature: Mapping[str, str]
    constexprs: Mapping[str, object]
    aligned: frozenset[str] = frozenset()
    num_warps: int = 4
    num_stages: int = 3
    programs: int = 1
    max_registers: int | None = None
    wide_loads: bool = False
    pipelined_loads: bool = False
    warpgroup_matmul: bool = False
    fused_products: bool = True

    def __post_init__(self) -> None:
        given = [*self.signature, *self.constexprs]
        if sorted(given) != sorted(self.kernel.arg_names):
            difference = sorted(set(given) ^ set(self.kernel.arg_names))
            raise ValueError(f"{self.name}: arguments given twice, missing or unknown: {difference or given}")
        if unknown := self.aligned - self.signature.keys():
            raise ValueError(f"{self.name}: aligned, but not in the signature: {sorted(unknown)}")
