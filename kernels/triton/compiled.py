"""Compiles a variant for a GPU, Hopper by default, on any machine, and reads facts from the result.

Triton compiles for an absent GPU if told its target; the cubin and the PTX then show what a profiler would show of the
code without running it. Only possible where kernels are not interpreted: a process with TRITON_INTERPRET set compiles
nothing.
"""

import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.triton.capability import HOPPER, LIMITS
from kernels.triton.ptx import PtxFacts, read_ptx
from kernels.triton.variants import KernelVariant

# Of one multiprocessor of every capability: CUDA C++ Programming Guide, technical specifications.
_REGISTERS = 64 * 1024
_REGISTERS_GRANTED_AT_ONCE = 256
_SHARED_BYTES_OF_THE_SYSTEM = 1024  # for each program
_WARP_THREADS = 32
LEAST_WIDE_SHARE = 0.75
"""Minimum share of a tile's bytes loaded by wide loads in a kernel that promises them. The rest is ids and lengths; a
tile of values in narrow loads would exceed it."""

TOLERATED_SPILLS: Mapping[tuple[int, str], int] = {
    (100, "add-rms-norm-bf16-16384"): 8,
    (100, "add-rms-norm-fp16-16384"): 8,
}
"""By capability and variant, bytes of a thread: the assembler spills these to fit a second program."""

_WIDE_BYTES = 16
# A load of the intermediate code that gives one number, the same to every thread: no tile, however narrow.
_SCALAR_LOAD = re.compile(r"\btt\.load\b[^:]*: !tt\.ptr<[a-z]+(\d+)")
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")
_SERIALISED = re.compile(r"wgmma\.mma_async instructions are serialized")


class CompilationError(Exception):
    """A variant does not compile; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class CompiledVariant:
    """Facts about a compiled variant.

    capability: compute capability that it is compiled for, times ten.
    registers, local_bytes: of one thread. Local memory is device memory that holds spilled registers.
    shared_bytes: of one program.
    tile_loads: number of instructions that read tiles from device memory, by bytes a thread.
    serialised: the compiler made warp group products wait for one another.
    """

    name: str
    capability: int
    num_warps: int
    registers: int
    local_bytes: int
    shared_bytes: int
    tile_loads: Mapping[int, int]
    serialised: bool
    ptx: PtxFacts

    @property
    def wide_share(self) -> float:
        """Share of the tiles' bytes loaded 16 at a time; 0 if no tile is read."""
        total = sum(width * count for width, count in self.tile_loads.items())
        wide = sum(width * count for width, count in self.tile_loads.items() if width >= _WIDE_BYTES)
        return wide / total if total else 0.0

    @property
    def shared_limit(self) -> int:
        """Shared memory that a program may have, in bytes."""
        return 1024 * LIMITS[self.capability].program_shared_kib

    @property
    def programs(self) -> int:
        """Programs that a multiprocessor holds at once; 0 if not even one fits."""
        if self.shared_bytes > self.shared_limit:
            return 0
        limits = LIMITS[self.capability]
        granted = -(-self.registers * _WARP_THREADS // _REGISTERS_GRANTED_AT_ONCE) * _REGISTERS_GRANTED_AT_ONCE
        return min(
            _REGISTERS // (granted * self.num_warps),
            1024 * limits.shared_kib // (self.shared_bytes + _SHARED_BYTES_OF_THE_SYSTEM),
            limits.warps // self.num_warps,
            limits.programs,
        )


def compile_variant(variant: KernelVariant, capability: int = HOPPER) -> CompiledVariant:
    """Compile for one of `LIMITS`. Raises CompilationError. About a second, less if Triton's disk cache has it."""
    if not isinstance(variant.kernel, triton.JITFunction):
        raise CompilationError(f"{variant.name}: kernels are interpreted in this process")
    if unseen := variant.aligned & _unspecialised(variant.kernel):
        raise CompilationError(f"{variant.name}: aligned, but the launcher is told not to look: {sorted(unseen)}")
    options = {
        "num_warps": variant.num_warps,
        "num_stages": variant.num_stages,
        "enable_fp_fusion": variant.fused_products,
        "maxnreg": variant.max_registers,
    }
    try:
        target = GPUTarget("cuda", capability, _WARP_THREADS)
        compiled = triton.compile(_source(variant), target=target, options=options)
    except Exception as error:  # the compiler has no error of its own that covers all of its stages
        raise CompilationError(f"{variant.name}: {type(error).__name__}: {error}") from error
    facts = read_ptx(compiled.asm["ptx"])
    registers, local_bytes = _resources(compiled.asm["cubin"])
    return CompiledVariant(
        name=variant.name,
        capability=capability,
        num_warps=compiled.metadata.num_warps,
        registers=registers,
        local_bytes=local_bytes,
        shared_bytes=compiled.metadata.shared,
        tile_loads=facts.loads - _scalar_loads(compiled.asm["ttgir"]),
        serialised=facts.warpgroup_products > 0 and _is_serialised(compiled.asm["ptx"]),
        ptx=facts,
    )


def broken_promises(variant: KernelVariant, compiled: CompiledVariant) -> Iterator[str]:
    """The rules for every kernel, and for Hopper the variant's own promises, that it violates."""
    facts = compiled.ptx
    if compiled.local_bytes > TOLERATED_SPILLS.get((compiled.capability, compiled.name), 0):
        yield f"{compiled.local_bytes} bytes of local memory a thread: registers are spilled"
    if compiled.shared_bytes > compiled.shared_limit:
        yield f"{compiled.shared_bytes} bytes of shared memory, and a program may have {compiled.shared_limit}"
    waits = _waits(variant.kernel) and compiled.capability >= HOPPER
    if (waits or facts.dependent) and not facts.waits_first:
        yield "memory is accessed, or the next kernel placed, before the kernel before has ended"
    if compiled.shared_bytes <= compiled.shared_limit and compiled.programs < variant.programs:
        yield f"{compiled.programs} programs fit a multiprocessor, and the launch counts on {variant.programs}"
    if compiled.capability != HOPPER:
        return
    if variant.wide_loads and compiled.wide_share < LEAST_WIDE_SHARE:
        loads = dict(sorted(compiled.tile_loads.items()))
        yield f"{compiled.wide_share:.0%} of tiles' bytes come 16 at a time; loads by width: {loads}"
    if variant.pipelined_loads and not _is_pipelined(facts):
        yield f"loads are not a tile ahead: {facts.loops or 'no loop copies what it computes on'}"
    if variant.warpgroup_matmul and (facts.warpgroup_products == 0 or facts.warp_products > 0):
        yield f"{facts.warpgroup_products} products of warp groups, {facts.warp_products} of single warps"
    if variant.warpgroup_matmul and compiled.serialised:
        yield "products of warp groups wait for one another"


def _is_pipelined(facts: PtxFacts) -> bool:
    """Whether every loop computes on one tile while the next is in flight, mostly by asynchronous copies."""
    return bool(facts.loops) and all(
        loop.trips_ahead >= 1 and loop.direct_bytes < loop.copied_bytes for loop in facts.loops
    )


def _waits(kernel: Any) -> bool:
    """Whether a kernel may be launched dependently: see `kernels.triton.dependent_launch`."""
    return "wait_for_predecessor()" in kernel.src


def _unspecialised(kernel: Any) -> set[str]:
    """Arguments on whose values the launcher does not specialise the kernel."""
    return {
        parameter.name
        for parameter in kernel.params
        if parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
    }


def _source(variant: KernelVariant) -> Any:
    names = variant.kernel.arg_names
    return ASTSource(
        variant.kernel,
        {name: variant.signature.get(name, "constexpr") for name in names},
        dict(variant.constexprs),
        # In their order: Triton's cache on disk tells sources apart by it.
        {(place,): [["tt.divisibility", 16]] for place, name in enumerate(names) if name in variant.aligned},
    )


def _scalar_loads(ttgir: str) -> Counter[int]:
    """Number of scalar loads, by their bytes."""
    return Counter(int(bits) // 8 for bits in _SCALAR_LOAD.findall(ttgir))


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and local memory bytes of one thread, over the kernel and the functions it calls."""
    listing = _run_on(cubin, lambda path: [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path])
    usage = [(int(registers), int(stack)) for registers, stack in _RESOURCES.findall(listing)]
    return max(registers for registers, _ in usage), max(stack for _, stack in usage)


def _is_serialised(ptx: str) -> bool:
    """Whether the assembler warns that warp group products cannot overlap; Triton hides the warning."""
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)
    assert target is not None, "PTX names its target"
    command = [knobs.nvidia.ptxas.path, "-v", f"--gpu-name={target[1]}", "-o", os.devnull]
    return _SERIALISED.search(_run_on(ptx.encode(), lambda path: [*command, path])) is not None


def _run_on(content: bytes, command: Callable[[str], list[str]]) -> str:
    """Output, standard error included, of a compiler tool on a file with this content."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return subprocess.run(
            command(file.name), check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ).stdout
