"""The steps that a GPU's memory is measured with are the largest there can be."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from engine.config import SchedulerConfig
from engine.errors import DeviceLost, OutOfDeviceMemory
from engine.execution.device import placement
from engine.execution.device.faults import device_errors
from engine.execution.device.placement import largest_step, measure_graphs, place, run_largest_step
from engine.execution.device.runner import DeviceRunner
from engine.memory.kv_memory import DeviceMemory
from engine.scheduling.plan import ScheduledRow, StepPlan
from kernels.reference_step import ReferenceStepOps
from tests.engine.execution.device.harness import Output, load_reference, rerun, running_request

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


@pytest.mark.parametrize("decode", [False, True])
def test_the_largest_step_launches_whatever_a_request_can_ask_for(tiny_folders: dict[str, Path], decode: bool) -> None:
    """So that all kernels are compiled before the first request."""
    model, step_ops = load_reference(tiny_folders["llama"]), ReferenceStepOps()
    kernels = {
        name: patch.object(ops, name, wraps=getattr(ops, name))
        for ops, names in (
            (model.ops, ("copy_blocks", "edit_logits", "token_logprobs")),
            (step_ops, ("mask_rows", "sample_slots")),
        )
        for name in names
    }
    with ExitStack() as stack:
        calls = {name: stack.enter_context(kernel) for name, kernel in kernels.items()}
        run_largest_step(model, step_ops, CONFIG, 500, decode=decode)
    assert all(call.called for call in calls.values())
    used = calls["sample_slots"].call_args.kwargs
    assert used["uses_thresholds"]
    assert used["uses_penalties"]


def test_the_memory_of_graphs_is_that_of_a_second_one_times_their_number(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = 0

    def capture(compute: Callable[[], Output]) -> Callable[[], Output]:
        nonlocal captured
        captured += 1
        return rerun(compute)

    monkeypatch.setattr("engine.execution.device.placement.CudaCapture", lambda: capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: ((1 << 30) - (captured << 20), 1 << 30))
    model = load_reference(tiny_folders["llama"])
    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=1, num_slots=4, max_model_len=64)
    for drafts, sizes in ((False, 3), (True, 3 + 8)):
        assert measure_graphs(runner, model.ops.device, drafts=drafts) == sizes * (2 << 20), "a forward pass and a draw"
    monkeypatch.setattr("engine.execution.device.placement.CudaCapture", FailingCapture)
    assert measure_graphs(runner, model.ops.device, drafts=True) == 0


@pytest.mark.parametrize("drafts", [False, True])
def test_memory_is_that_of_the_largest_steps_and_of_graphs(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, drafts: bool
) -> None:
    """Each kind of step is run once, with drafts only where there will be some, and the larger ones count."""
    peaks = {"prefill": 5 << 20, "decode": 2 << 20, "sampled": 1 << 20, "drafted": 7 << 20}
    ran: list[str] = []

    def step_of(name: str) -> Callable[..., None]:
        return lambda *_, decode=None: ran.append(name if decode is None else ("decode" if decode else "prefill"))

    monkeypatch.setattr(placement, "run_largest_step", step_of(""))
    monkeypatch.setattr(placement, "run_sampled_steps", step_of("sampled"))
    monkeypatch.setattr(placement, "run_drafted_steps", step_of("drafted"))
    monkeypatch.setattr(placement, "measure_graphs", lambda *_, drafts: 9 << 20)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 30, 4 << 30))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: ran.append("reset"))

    def last_peak(device: torch.device) -> int:
        return max(peaks[name] for name in ran[len(ran) - ran[::-1].index("reset") :])

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", last_peak)
    model = load_reference(tiny_folders["llama"])
    memory = placement.measure_memory(model, ReferenceStepOps(), CONFIG, 500, drafts=drafts)
    assert sorted(name for name in ran if name != "reset") == sorted(
        name for name in peaks if drafts or name != "drafted"
    )
    assert memory == DeviceMemory(4 << 30, 1 << 30, (9 if drafts else 7) << 20, 9 << 20)


class FailingCapture:
    def __call__(self, compute: Callable[[], Output]) -> Callable[[], Output]:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_capture_that_fails_leaves_a_runner_without_graphs(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.execution.device.placement.CudaCapture", FailingCapture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 2 << 30))
    model = load_reference(tiny_folders["llama"])
    runner = place(model, ReferenceStepOps(), num_blocks=8, num_slots=2, max_model_len=64)
    assert "CUDA graphs cannot be captured" in caplog.text
    request = running_request([5, 6, 7], 0, [0])
    for start, tokens in ((0, 3), (3, 1)):
        result = runner.execute(StepPlan(1, (ScheduledRow(request, start, tokens, True),))).result()
        assert result.rows[0].token is not None


def test_the_memory_of_graphs_is_logged(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    free = iter([900 << 20, 650 << 20])
    monkeypatch.setattr("engine.execution.device.placement.CudaCapture", lambda: rerun)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 1 << 30))
    with caplog.at_level("INFO"):
        place(load_reference(tiny_folders["llama"]), ReferenceStepOps(), num_blocks=8, num_slots=2, max_model_len=64)
    assert "CUDA graphs take 250 MiB; 650 MiB of the GPU are free" in caplog.text


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("no room"), OutOfDeviceMemory),
        (torch.AcceleratorError("an illegal memory access was encountered"), DeviceLost),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), DeviceLost),
        (RuntimeError("Triton Error [CUDA]: out of memory"), OutOfDeviceMemory),
        (RuntimeError("shapes do not match"), RuntimeError),
    ],
)
def test_errors_of_a_device_by_their_kind(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected) as raised, device_errors():
        raise error
    assert type(raised.value) is expected
