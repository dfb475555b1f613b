"""Compile variants in a process of its own: one that runs tests without a GPU interprets kernels instead.

Run as `python -m tests.kernels.triton.compiling MODULE:FUNCTION`, it writes a JSON object: each variant's faults.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

from kernels.triton.compiled import CompilationError, broken_promises, compile_variant
from kernels.triton.variants import KernelVariant

_ROOT = Path(__file__).parents[3]


def compile_in_child(variants: str) -> dict[str, list[str]]:
    """The faults of each of the variants that the function MODULE:FUNCTION gives, by name."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    child = subprocess.run(
        [sys.executable, "-m", __name__, variants],
        cwd=_ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    faults: dict[str, list[str]] = json.loads(child.stdout)
    return faults


def _faults(variant: KernelVariant) -> list[str]:
    try:
        return list(broken_promises(variant, compile_variant(variant)))
    except CompilationError as error:
        return [str(error)]


if __name__ == "__main__":
    module, function = sys.argv[1].split(":")
    json.dump({each.name: _faults(each) for each in getattr(importlib.import_module(module), function)()}, sys.stdout)
