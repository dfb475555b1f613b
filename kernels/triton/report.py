"""Reports facts about every shipped variant: `python -m kernels.triton.report [--capability 90] [PART OF A NAME]...`

Compiles for Hopper or for another capability, without a GPU, and prints a line for each variant: registers and local
memory of a thread, shared memory of a program, programs that a multiprocessor holds, the share of tiles' bytes loaded
16 at a time, how many trips ahead its loops copy, its kind of matrix product, the compile time; then the promises that
it breaks. Widths, copies and kinds of products are promised of Hopper alone, and nothing in e4m3 is compiled for a GPU
without it. Exits with 1 if a promise is broken.
"""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence

from kernels.triton.adapter_variants import adapter_variants
from kernels.triton.attention_variants import attention_variants
from kernels.triton.capability import HOPPER, LIMITS
from kernels.triton.compiled import (
    CompilationError,
    CompiledVariant,
    broken_promises,
    compile_variant,
)
from kernels.triton.delta_variants import delta_variants
from kernels.triton.elementwise import elementwise_variants
from kernels.triton.latent_variants import latent_variants
from kernels.triton.product_variants import product_variants
from kernels.triton.sampling_variants import sampling_variants
from kernels.triton.step_variants import step_variants
from kernels.triton.variants import KernelVariant

_FLOATS8 = "*fp8e4nv"
_HEADINGS = ("variant", "warps", "stages", "regs", "local", "shared", "programs", "wide", "ahead", "product", "seconds")


def shipped_variants(capability: int = HOPPER) -> tuple[KernelVariant, ...]:
    """All variants of a capability, with unique names."""
    variants = (
        *adapter_variants(),
        *attention_variants(capability),
        *delta_variants(),
        *elementwise_variants(),
        *latent_variants(capability),
        *product_variants(capability),
        *sampling_variants(),
        *step_variants(),
    )
    if LIMITS[capability].floats8:
        return variants
    return tuple(variant for variant in variants if _FLOATS8 not in variant.signature.values())


def main(arguments: Sequence[str]) -> int:
    """Report the variants whose name contains any of the parts, or all without parts; returns the exit status."""
    parser = ArgumentParser(prog="python -m kernels.triton.report")
    parser.add_argument("--capability", type=int, choices=LIMITS, default=HOPPER)
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args(arguments)
    parts = options.parts
    chosen = [
        variant
        for variant in shipped_variants(options.capability)
        if not parts or any(part in variant.name for part in parts)
    ]
    width = max((len(variant.name) for variant in chosen), default=0)
    _print_row(_HEADINGS, width)
    faulty = 0
    for variant in chosen:
        started = time.perf_counter()
        try:
            compiled = compile_variant(variant, options.capability)
        except CompilationError as error:
            faults = [str(error)]
        else:
            _print_row(_row(variant, compiled, time.perf_counter() - started), width)
            faults = list(broken_promises(variant, compiled))
        for fault in faults:
            print(f"    {fault}")
        faulty += bool(faults)
    print(f"{len(chosen)} variants, {faulty} with faults")
    return int(faulty > 0)


def _row(variant: KernelVariant, compiled: CompiledVariant, seconds: float) -> tuple[str, ...]:
    facts = compiled.ptx
    product = "wgmma" if facts.warpgroup_products else "mma" if facts.warp_products else "-"
    ahead = min((loop.trips_ahead for loop in facts.loops), default=None)
    return (
        variant.name,
        str(variant.num_warps),
        str(variant.num_stages),
        str(compiled.registers),
        str(compiled.local_bytes),
        f"{compiled.shared_bytes / 1024:.1f}K",
        str(compiled.programs),
        f"{compiled.wide_share:.0%}",
        "-" if ahead is None else f"{ahead:g}",
        product,
        f"{seconds:.2f}",
    )


def _print_row(cells: Sequence[str], width: int) -> None:
    print(cells[0].ljust(width), *(cell.rjust(8) for cell in cells[1:]), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
