"""Compile variants in a process of its own: one that runs tests without a GPU interprets kernels instead.

Run as `python -m tests.kernels.triton.compiling MODULE:FUNCTION CAPABILITY`, it writes a JSON object: each variant's
faults.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from kernels.triton.capability import HOPPER
from kernels.triton.compiled import CompilationError, broken_promises, compile_variant
from kernels.triton.variants import KernelVariant

_ROOT = Path(__file__).parents[3]


def compile_in_child(variants: str, capability: int = HOPPER) -> dict[str, list[str]]:
    """The faults on a GPU of each of the variants that the function MODULE:FUNCTION gives for it, by name."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-m", __name__, variants, str(capability)],
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    faults: dict[str, list[str]] = json.loads(child.stdout)
    return faults


def _faults(variant: KernelVariant, capability: int) -> list[str]:
    try:
        return list(broken_promises(variant, compile_variant(variant, capability)))
    except CompilationError as error:
        return [str(error)]


if __name__ == "__main__":
    module, function = sys.argv[1].split(":")
    capability = int(sys.argv[2])
    given = getattr(importlib.import_module(module), function)(capability)
    json.dump({each.name: _faults(each, capability) for each in given}, sys.stdout)
