"""A draft model on its target's device: the host waits once for a plan, few rows are replayed, nothing is lost."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.config import MOST_DRAFTS
from engine.errors import DeviceLost, OutOfDeviceMemory
from engine.execution.device import staging
from engine.execution.device.graphs import Capture, CudaCapture
from engine.execution.device.inputs import START_WORD, arrange
from engine.execution.device.sampler import sampling_needs
from engine.models.transformer import Transformer
from engine.request import Request, SamplingParams
from engine.scheduling.plan import ScheduledRow
from engine.speculation import DraftWant, FixedDepth, Speculator
from engine.speculation.device import drafter as drafter_module
from engine.speculation.device.draft_placement import largest_drafting, largest_plan, place_drafter
from engine.speculation.device.draft_steps import draft_steps
from engine.speculation.device.drafter import DeviceDrafter
from engine.speculation.draft_memory import DraftPlan, DraftRow
from engine.speculation.draft_model import DraftModel
from kernels.reference_step import ReferenceStepOps
from kernels.step import StepOps
from kernels.triton.step_ops import TritonStepOps
from tests.engine.execution.device.harness import (
    DRAFT_GRAPHS,
    LADEN,
    NEEDS_GPU,
    ON_GPU,
    REFERENCE,
    TRITON,
    Output,
    load_reference,
    load_triton,
    rerun,
    running_request,
)
from tests.engine.execution.draft_cases import SEEDED, TOGGLES, assert_same, mixed, usage_of, without
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, fill_with_nan, load_tiny, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint


@cache
def model_of(folder: Path) -> Transformer:
    return load_reference(folder)


def drafter_of(
    model: Transformer, *, graphs: bool = False, step_ops: type[StepOps] = ReferenceStepOps, num_slots: int = 64
) -> DeviceDrafter:
    """Its memory is full of what is no number: nothing that was not written may be read."""
    drafter = DeviceDrafter(
        model, step_ops(), model, max_positions=model.config.max_position, num_blocks=256, num_slots=num_slots
    )
    fill_with_nan(drafter._kv)
    if graphs:
        drafter.capture_graphs(rerun)
    return drafter


def proposer_of(drafter: DeviceDrafter, num_slots: int = 64) -> DraftModel:
    return DraftModel(drafter, num_blocks=256, num_slots=num_slots, max_positions=drafter._model.config.max_position)


def counts(harness: Harness) -> tuple[int, int]:
    """Drafts that were verified, and those that were accepted."""
    usages = [usage_of(generated) for generated in harness.results.values()]
    return sum(usage.draft_tokens for usage in usages), sum(usage.accepted_draft_tokens for usage in usages)


@pytest.mark.parametrize(("depth", "toggle"), [(4, "plain"), *enumerate(TOGGLES, 1)])
@pytest.mark.parametrize(
    ("make_runner", "graphs"), [(REFERENCE, False), (DRAFT_GRAPHS, True)], ids=["launched", "graphs"]
)
def test_all_drafts_of_the_same_model_are_accepted(
    tiny_folders: dict[str, Path], make_runner: MakeRunner, graphs: bool, depth: int, toggle: str
) -> None:
    """Greedy, seeded, and with penalties and biases; chunked, preempted, forked and behind prefix hits."""
    folder = tiny_folders["llama"]
    speculator = Speculator([proposer_of(drafter_of(model_of(folder), graphs=graphs))], FixedDepth(depth))
    harness = Harness(model_of(folder), make_runner=make_runner, speculator=speculator, **TOGGLES[toggle])  # type: ignore[arg-type]
    mixed(harness)
    assert_same(dict(harness.run(preempt_every=3 if toggle == "preempted" else None)), without(folder))
    drafts, accepted = counts(harness)
    assert 40 < accepted == drafts


@pytest.mark.parametrize("family", ["gemma4", "deepseek_v2", "qwen2_moe"])
def test_models_of_all_kinds_draft(tiny_folders: dict[str, Path], family: str) -> None:
    """Layers with KV of their own sizes, latents, experts; for themselves, and for a model with recurrent layers."""
    draft = model_of(tiny_folders[family])
    for target in (family, "qwen3_5"):
        expected = Harness(model_of(tiny_folders[target]), make_runner=REFERENCE, max_running=4)
        harness = Harness(
            model_of(tiny_folders[target]),
            make_runner=REFERENCE,
            max_running=4,
            speculator=Speculator([proposer_of(drafter_of(draft, graphs=True))], FixedDepth(3)),
        )
        for each in (expected, harness):
            for index, params in enumerate((GREEDY, SEEDED, LADEN)):
                each.add(prompt(20 + index), params, max_tokens=12, seed=index)
            each.run()
        assert_same(harness.results, expected.results)
        drafts, accepted = counts(harness)
        assert drafts > 0
        assert target != family or accepted == drafts


class CountedFence:
    waits = 0

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        CountedFence.waits += 1


@pytest.mark.parametrize("graphs", [False, True])
def test_the_host_waits_once_and_uploads_once(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    uploads: list[int] = []
    upload = staging.Staging.upload

    def counted(self: staging.Staging, words: staging.npt.NDArray[staging.np.int32]) -> Tensor:
        uploads.append(len(words))
        return upload(self, words)

    monkeypatch.setattr(drafter_module, "fences_of", lambda device: CountedFence)
    drafter = drafter_of(model_of(tiny_folders["llama"]), graphs=graphs)
    draft = proposer_of(drafter)
    harness = Harness(model_of(tiny_folders["llama"]), make_runner=REFERENCE)
    for index, params in enumerate((GREEDY, SEEDED, LADEN)):
        harness.add(prompt(20), params, max_tokens=40, seed=index)
    harness.step()
    harness.step()
    for depth in (1, 4, MOST_DRAFTS):
        harness.step()
        harness.step()
        wants = [DraftWant(request, depth) for request in harness.scheduler.running]
        CountedFence.waits = 0
        with monkeypatch.context() as patch:
            patch.setattr(staging.Staging, "upload", counted)
            drafts = draft.propose(wants)
        assert [len(each) for each in drafts] == [depth] * 3
        assert (CountedFence.waits, len(uploads)) == (1, 1)
        uploads.clear()
    assert (drafter.replayed_total > 0) == graphs


def test_every_step_of_few_rows_is_replayed(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """But the first one, which computes the prompts."""
    folder = tiny_folders["llama"]
    drafter = drafter_of(model_of(folder), graphs=True)
    left: list[int] = []
    run = drafter.run

    def counted(plan: DraftPlan) -> list[list[int]]:
        replayed = drafter.replayed_total
        drafts = run(plan)
        left.append(max(row.depth for row in plan.rows) - (drafter.replayed_total - replayed))
        return drafts

    monkeypatch.setattr(drafter, "run", counted)
    speculator = Speculator([proposer_of(drafter)], FixedDepth(3))
    harness = Harness(model_of(folder), make_runner=DRAFT_GRAPHS, speculator=speculator)
    for index in range(3):
        harness.add(prompt(20 + index), max_tokens=40)
    harness.run()
    assert left == [1] + [0] * (len(left) - 1)
    assert len(left) > 8
    assert harness.runner.launches is not None
    assert harness.runner.launches.decode_total == 0


def test_rows_leave_a_plan_once_they_have_their_drafts(tiny_folders: dict[str, Path]) -> None:
    drafter = drafter_of(model_of(tiny_folders["llama"]), graphs=True)
    rows = [
        DraftRow(index, running_request(prompt(10 + index), index, [index]), 9 + index, 1, depth, [index, 256 + index])
        for index, depth in enumerate((3, 0, 1, 2))
    ]
    steps = draft_steps(rows, drafter.graph_sizes)
    assert [step.slots for step in steps] == [[0, 1, 2, 3], [0, 3], [0]]
    assert [step.first for step in steps] == [0, 4, 6]
    starts = [step.words[: len(step.slots), START_WORD].tolist() for step in steps]
    assert starts == [[9, 10, 11, 12], [10, 13], [11]]
    assert all(step.key is not None for step in steps)


@pytest.mark.parametrize("params", [GREEDY, SEEDED, LADEN], ids=["greedy", "seeded", "laden"])
@pytest.mark.parametrize("tokens", [1, 2])
def test_steps_of_the_same_rows_are_those_that_each_would_be_alone(
    tiny_folders: dict[str, Path], tokens: int, params: SamplingParams
) -> None:
    graphs = drafter_of(model_of(tiny_folders["llama"]), graphs=True).graph_sizes
    rows = [
        DraftRow(index, running_request(prompt(30 + index), index, [index], params), 30 + index - tokens, tokens, 5, [])
        for index in range(3)
    ]
    steps = draft_steps(rows, graphs)
    assert len(steps) == 5
    for drawn, step in enumerate(steps[1:], 1):
        planned = [ScheduledRow(row.request, row.start + row.tokens + drawn - 1, 1, True) for row in rows]
        inputs = arrange(planned, graphs)
        needs = replace(sampling_needs(inputs.rows, range(3)), logprobs=[], tops=[])
        assert step.words.tolist() == inputs.words.tolist()
        assert (step.shape, step.key, step.needs) == (inputs.shape, inputs.key, needs)
        assert step.first == steps[drawn - 1].first + len(steps[drawn - 1].words)


class Patient(DraftModel):
    """Without drafts where there is no memory for them, as the step loop is."""

    failures = 0

    def propose(self, wants: Sequence[DraftWant]) -> list[Sequence[int]]:
        try:
            return super().propose(wants)
        except OutOfDeviceMemory:
            self.failures += 1
            return [()] * len(wants)


@pytest.mark.parametrize("graphs", [False, True])
def test_drafting_that_runs_out_of_memory_loses_nothing(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, graphs: bool
) -> None:
    folder = tiny_folders["llama"]
    drafter = drafter_of(model_of(folder), graphs=graphs)
    calls = 0
    launch = drafter._launch

    def fails_at_times(*arguments: object, **settings: bool) -> None:
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")
        launch(*arguments, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(drafter, "_launch", fails_at_times)
    draft = Patient(drafter, num_blocks=256, num_slots=64, max_positions=model_of(folder).config.max_position)
    harness = Harness(model_of(folder), make_runner=REFERENCE, speculator=Speculator([draft], FixedDepth(3)))
    mixed(harness)
    assert_same(dict(harness.run()), without(folder))
    drafts, accepted = counts(harness)
    assert draft.failures > 2
    assert 40 < accepted == drafts


def test_a_lost_device_is_reported(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = drafter_of(model_of(tiny_folders["llama"]))

    def lost(*_: object) -> None:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    monkeypatch.setattr(drafter._step_ops, "derive", lost)
    request: Request = running_request(prompt(10), 0, [0])
    with pytest.raises(DeviceLost):
        proposer_of(drafter).propose([DraftWant(request, 2)])


class FailingCapture:
    def __call__(self, compute: Callable[[], Output]) -> Callable[[], Output]:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_a_capture_that_fails_leaves_launched_steps(
    tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("engine.execution.device.placement.CudaCapture", FailingCapture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 2 << 30))
    model = model_of(tiny_folders["llama"])

    def new_drafter(*, num_blocks: int, num_slots: int) -> DeviceDrafter:
        return DeviceDrafter(
            model, ReferenceStepOps(), model, max_positions=64, num_blocks=num_blocks, num_slots=num_slots
        )

    drafter = place_drafter(new_drafter, num_blocks=8, num_slots=2)
    assert "CUDA graphs cannot be captured" in caplog.text
    draft = DraftModel(drafter, num_blocks=8, num_slots=2, max_positions=64)
    assert len(draft.propose([DraftWant(running_request(prompt(10), 0, [0]), 3)])[0]) == 3
    assert drafter.replayed_total == 0


def test_the_steps_that_memory_is_measured_with_run(tiny_folders: dict[str, Path]) -> None:
    model = model_of(tiny_folders["llama"])

    def new_drafter(*, num_blocks: int, num_slots: int) -> DeviceDrafter:
        return DeviceDrafter(
            model, ReferenceStepOps(), model, max_positions=64, num_blocks=num_blocks, num_slots=num_slots
        )

    steps = largest_drafting(new_drafter, num_slots=4, most_rows=3, max_positions=64)
    for run in steps.largest:
        run()
    steps.capture(rerun)
    assert steps.num_graphs == 2 * len((1, 2, 4))


@pytest.mark.parametrize(("catch_up", "tokens"), [(100, [47, 47, 12]), (0, [2, 2, 2])])
def test_the_largest_plan_catches_up_as_far_as_it_may(catch_up: int, tokens: list[int]) -> None:
    plan = largest_plan(3, 48, catch_up)
    assert [row.tokens for row in plan.rows] == tokens
    assert all(row.depth == 2 and len(row.request.tokens) == row.tokens for row in plan.rows)
    assert max(row.start + row.tokens + row.depth - 1 for row in plan.rows) <= 48


@pytest.mark.parametrize(
    ("family", "make_runner", "capture"),
    [
        ("qwen3", TRITON, lambda: rerun),
        pytest.param("qwen3", *ON_GPU.values, CudaCapture, marks=NEEDS_GPU),
        pytest.param("deepseek_v2", *ON_GPU.values, CudaCapture, marks=NEEDS_GPU),
    ],
)
def test_tritons_kernels_draft(
    tmp_path: Path, make_runner: MakeRunner, capture: Callable[[], Capture], family: TinyFamily
) -> None:
    folder = make_checkpoint(tmp_path / "model", family, num_hidden_layers=1)
    params = (SamplingParams(temperature=0, ignore_eos=True), LADEN)
    alone = Harness(load_tiny(folder), max_running=2)
    model = load_triton(folder)
    drafter = drafter_of(model, step_ops=TritonStepOps, num_slots=2)
    drafter.capture_graphs(capture())
    speculator = Speculator([proposer_of(drafter, 2)], FixedDepth(2))
    harness = Harness(model, max_running=2, make_runner=make_runner, speculator=speculator)
    for each in (alone, harness):
        for index, sampling in enumerate(params):
            each.add(prompt(19 - 15 * index), sampling, max_tokens=7, seed=8)
        each.run()
    assert_same(harness.results, dict(alone.results))
    drafts, accepted = counts(harness)
    assert 4 < accepted == drafts
    assert drafter.replayed_total == 3
