"""Tests of the Triton kernels: interpreted where there is no GPU, skipped where there is no Triton."""

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install 'turnpike[gpu]'")

from tests.kernels.triton import bfloat16

bfloat16.install()
