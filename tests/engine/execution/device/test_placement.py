"""The steps that a GPU's memory is measured with are the largest there can be."""

from pathlib import Path

import pytest

from engine.config import SchedulerConfig
from engine.execution.device.placement import largest_step, run_largest_step
from kernels.reference_step import ReferenceStepOps
from tests.engine.execution.device.harness import load_reference

CONFIG = SchedulerConfig(max_running=6, step_tokens=100, chunk_tokens=40)


def test_the_largest_step_has_all_tokens_and_a_row_in_every_slot() -> None:
    plan = largest_step(CONFIG, 500, decode=False)
    assert plan.total_tokens == CONFIG.step_tokens
    assert [row.tokens for row in plan.rows] == [40, 40, 17, 1, 1, 1]
    assert sorted(row.request.slot or 0 for row in plan.rows) == list(range(6))
    assert all(row.samples for row in plan.rows)


def test_rows_stay_within_the_window() -> None:
    assert [row.tokens for row in largest_step(CONFIG, 30, decode=False).rows] == [30, 30, 30, 8, 1, 1]


def test_the_largest_decode_step_has_a_token_in_every_slot() -> None:
    assert [row.tokens for row in largest_step(CONFIG, 500, decode=True).rows] == [1] * 6
    many = SchedulerConfig(max_running=600, step_tokens=600)
    assert len(largest_step(many, 500, decode=True).rows) == 256, "no graph is larger"


@pytest.mark.parametrize("decode", [False, True])
def test_the_largest_step_runs(tiny_folders: dict[str, Path], decode: bool) -> None:
    run_largest_step(load_reference(tiny_folders["llama"]), ReferenceStepOps(), CONFIG, 500, decode=decode)
