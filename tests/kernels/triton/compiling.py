"""Compile variants in a process of its own: one that runs tests without a GPU interprets kernels instead.

Run as `python -m tests.kernels.triton.compiling faults CAPABILITY MODULE:FUNCTION`, it writes a JSON object: each
variant's faults. A variant that `compiled.txt` records is not compiled again: the record has it without faults, with a
digest of all that this follows from. What is not recorded is compiled, so the record saves 200 s of processor time, and
changes nothing else.

    python -m tests.kernels.triton.compiling --record

compiles what the record lacks and writes it again, after a change of a kernel or of Triton.
"""

import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from triton.runtime import jit
from triton.runtime.cache import triton_key

from kernels.triton import capability as limits
from kernels.triton import compiled, ptx
from kernels.triton.capability import HOPPER, LIMITS
from kernels.triton.compiled import CompilationError, broken_promises, compile_variant
from kernels.triton.variants import KernelVariant
from tests.kernels.triton.sampled import sampled_variants

_ROOT = Path(__file__).parents[3]
RECORD = Path(__file__).with_name("compiled.txt")
"""Lines of a digest, a capability and the name of a variant that was compiled for it without faults."""


def compile_in_child(variants: str, capability: int = HOPPER, *, fresh: bool = False) -> dict[str, list[str]]:
    """The faults on a GPU of each of the variants that the function MODULE:FUNCTION gives for it, by name.

    fresh: compile what is recorded, too.
    """
    faults: dict[str, list[str]] = _run_child("fresh" if fresh else "faults", str(capability), variants)
    return faults


def digests_in_child(functions: Sequence[str], folder: Path) -> list[dict[str, str]]:
    """The digests of the variants of each MODULE:FUNCTION, by name. Modules may be in a folder."""
    digests: list[dict[str, str]] = _run_child("digests", str(HOPPER), *functions, PYTHONPATH=str(folder))
    return digests


def _run_child(*arguments: str, **variables: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-m", __name__, *arguments],
        cwd=_ROOT,
        env=environment | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(child.stdout)


def recorded() -> set[str]:
    """The digests of the record."""
    return {line.split()[0] for line in RECORD.read_text(encoding="utf-8").splitlines()}


def digest(variant: KernelVariant, capability: int) -> str:
    """Of the kernel and all that it calls, the arguments, the promises, the rules that check them, and the compiler."""
    parts = (
        _rules(),
        compiled._source(variant).hash(),
        sorted(variant.signature.items()),
        sorted(variant.constexprs),
        sorted(variant.aligned),
        [getattr(variant, name) for name in _PLAIN],
        capability,
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


_PLAIN = (
    "name",
    "num_warps",
    "num_stages",
    "programs",
    "max_registers",
    "wide_loads",
    "pipelined_loads",
    "warpgroup_matmul",
    "fused_products",
)


@cache
def _rules() -> str:
    texts = [Path(module.__file__ or "").read_text(encoding="utf-8") for module in (compiled, limits, ptx)]
    return hashlib.sha256("".join([triton_key(), *texts]).encode()).hexdigest()


def _faults(variant: KernelVariant, capability: int) -> list[str]:
    try:
        return list(broken_promises(variant, compile_variant(variant, capability)))
    except CompilationError as error:
        return [str(error)]


def _faults_unless_recorded(variant: KernelVariant, capability: int, known: set[str]) -> list[str]:
    return [] if digest(variant, capability) in known else _faults(variant, capability)


def _make_digests_stable() -> None:
    """Triton's own have the line that a kernel begins in, and order constants of one name in two modules by address."""
    jit.sorted = lambda constants: sorted(constants, key=lambda each: (each[0][0], repr(each[1][0])))  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        kernels = () if name.startswith("torch") else tuple(vars(module).values())
        for kernel in kernels:
            if isinstance(kernel, jit.JITCallable):
                kernel.starting_line_number = 0


def _write_record() -> Iterable[str]:
    """Compile what is not recorded and write the record. Yields the faults."""
    from kernels.triton.report import shipped_variants

    _make_digests_stable()
    known, lines = recorded() if RECORD.exists() else set(), []
    for capability in LIMITS:
        for variant in shipped_variants(HOPPER) if capability == HOPPER else sampled_variants(capability):
            if faults := _faults_unless_recorded(variant, capability, known):
                yield f"{variant.name} for {capability}: {'; '.join(faults)}"
            else:
                lines.append(f"{digest(variant, capability)} {capability} {variant.name}\n")
    RECORD.write_text("".join(sorted(lines, key=lambda line: line.split()[1:])), encoding="utf-8")


def main(arguments: list[str]) -> int:
    if arguments == ["--record"]:
        faults = list(_write_record())
        print(*faults, sep="\n", end="")
        return 1 if faults else 0
    asked, capability, functions = arguments[0], int(arguments[1]), [each.split(":") for each in arguments[2:]]
    given = [getattr(importlib.import_module(module), name)(capability) for module, name in functions]
    _make_digests_stable()
    if asked == "digests":
        json.dump([{each.name: digest(each, capability) for each in variants} for variants in given], sys.stdout)
    else:
        known = set() if asked == "fresh" else recorded()
        json.dump({each.name: _faults_unless_recorded(each, capability, known) for each in given[0]}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
