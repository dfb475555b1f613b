"""Where the native library computes, nothing imports torch: it would take a second and 130 MiB of every process."""

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.cpu.native_ops import computes_natively

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not computes_natively(), reason="the native library does not compute here")
def test_loading_and_all_that_is_asked_of_a_model(tiny_folders: dict[str, Path]) -> None:
    """Answers with penalties, log-probabilities and drafts, embeddings, and answers of some tokens alone."""
    command = [sys.executable, "-m", "tests.engine.without_torch", str(tiny_folders["llama"])]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (process.returncode, process.stdout) == (0, "[]\n"), process.stderr
