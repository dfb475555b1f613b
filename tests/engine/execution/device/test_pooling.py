"""The device's embeddings are those of the CPU, ahead of its own results and after a step that had no room."""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import OutOfDeviceMemory
from engine.execution.device.runner import DeviceRunner
from engine.request import Pooling
from engine.scheduling.plan import ScheduledRow, StepPlan
from kernels.reference_step import ReferenceStepOps
from tests.engine.execution.device.harness import REFERENCE, REFERENCE_GRAPHS, load_reference, running_request
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, load_tiny
from tests.engine.execution.pooling_cases import LENGTHS, embedding, of, prompt, vector


def fill(harness: Harness) -> None:
    """Embeddings among requests that answer: after each the device has its next step before it has landed."""
    for length in LENGTHS:
        for pooling in Pooling:
            harness.add(prompt(length), embedding(pooling), max_tokens=0)
        harness.add(prompt(length), GREEDY, max_tokens=12)


@pytest.mark.parametrize("make_runner", [REFERENCE, REFERENCE_GRAPHS], ids=["eager", "graphs"])
@pytest.mark.parametrize("preempt_every", [None, 20])
def test_embeddings_are_the_cpus(
    tiny_folders: dict[str, Path], make_runner: MakeRunner, preempt_every: int | None
) -> None:
    folder = tiny_folders["qwen3"]
    on_cpu = Harness(load_tiny(folder))
    fill(on_cpu)
    expected = on_cpu.run()
    on_device = Harness(load_reference(folder), make_runner=make_runner, max_running=16, step_tokens=24, chunk_tokens=7)
    fill(on_device)
    results = on_device.run(preempt_every=preempt_every)
    assert on_device.most_in_flight == 2
    assert (on_device.scheduler.stats().preemptions_total > 0) == (preempt_every is not None)
    for index in range(len(LENGTHS)):
        for name in (str(3 * index), str(3 * index + 1)):
            torch.testing.assert_close(vector(of(results, name)), vector(of(expected, name)), atol=1e-4, rtol=0)


def test_a_step_without_room_may_be_run_again(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows: where there is none for the second one's sum, the first one's must not count twice."""

    def full(*arguments: object, **options: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room")

    model = load_reference(tiny_folders["qwen3"])
    runner = DeviceRunner(model, ReferenceStepOps(), num_blocks=16, num_slots=4, max_model_len=200)
    requests = [
        running_request(prompt(40), slot, [3 * slot, 3 * slot + 1, 3 * slot + 2], embedding(pooling))
        for slot, pooling in enumerate((Pooling.MEAN, Pooling.LAST))
    ]

    def plan(start: int, tokens: int) -> StepPlan:
        return StepPlan(1, tuple(ScheduledRow(request, start, tokens, False) for request in requests))

    whole = [row.embedding for row in runner.execute(plan(0, 40)).result().rows]
    assert [row.embedding for row in runner.execute(plan(0, 16)).result().rows] == [b"", b""]
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "normalize", full)
        with pytest.raises(OutOfDeviceMemory):
            runner.execute(plan(16, 24))
    again = [row.embedding for row in runner.execute(plan(16, 24)).result().rows]
    for each, expected in zip(again, whole, strict=True):
        np.testing.assert_allclose(np.frombuffer(each, "<f4"), np.frombuffer(expected, "<f4"), atol=1e-5)
