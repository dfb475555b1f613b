"""The benchmark of the host's part of a step drives the runner as it is."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from benchmarks.launch_host import measure


def test_each_part_is_timed() -> None:
    parts = measure(rows=4, steps=5).parts
    assert {name: len(times) for name, times in parts.items()} == dict.fromkeys(parts, 5)
    assert {"schedule", "launch", "result", "commit"} <= parts.keys()
