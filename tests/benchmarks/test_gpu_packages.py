"""Code for a GPU runs with the packages that machines with a GPU have."""

import os
import subprocess
import sys

import pytest

from tests.support.wheel import ROOT

pytest.importorskip("triton", reason="Triton is not installed: pip install 'turnpike[gpu]'")

STAGES = """
import tests.support.gpu_packages as gpu_packages
gpu_packages.hide_others()
import benchmarks.gpu.__main__ as gpu
assert "triton" not in __import__("sys").modules, "the parent of the stages needs no kernel"
for kind in gpu.KINDS:
    kind.work()
print(len(gpu.KINDS))
"""

PLUGINS = ("-p", "tests.support.gpu_packages", "-p", "anyio.pytest_plugin")


def run(*arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TRITON_INTERPRET": "1"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_every_stage_of_the_benchmark_starts() -> None:
    assert int(run("-c", STAGES)) > 10


@pytest.mark.parametrize("folder", ["tests/kernels/triton", "tests/engine/execution/device"])
def test_kernel_tests_are_collected(folder: str) -> None:
    collected = run("-m", "pytest", *PLUGINS, "--collect-only", folder)
    assert len(collected.splitlines()) > 20


def test_kernel_tests_run() -> None:
    assert " passed" in run("-m", "pytest", *PLUGINS, "tests/kernels/triton/test_norms.py")
