"""A device runner with adapters gives the text of the torch CPU backend with each adapter merged, whatever shares the
steps."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.device.graphs import GraphKey, graph_sizes
from engine.execution.device.inputs import arrange
from engine.execution.device.runner import DeviceRunner
from engine.models.loader import load_model
from engine.models.torch_model import TorchModel
from engine.models.transformer import Transformer
from engine.request import Request, SamplingParams
from engine.scheduling.plan import ScheduledRow
from engine.speculation import FixedDepth, Speculator
from kernels.adapters import AdapterWeights
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.reference_step import ReferenceStepOps
from kernels.step import StepOps
from kernels.triton.step_ops import TritonStepOps
from tests.engine.execution.device.harness import load_reference, load_triton, rerun, running_request
from tests.engine.execution.draft_cases import Coin
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, prompt
from tests.support.tiny_adapters import merge, random_adapter
from tests.support.tiny_models import make_checkpoint

SLOTS = 3
SEEDED = SamplingParams(temperature=0.9, ignore_eos=True)
ROWS: tuple[tuple[int, int | None, SamplingParams], ...] = (
    (19, 0, GREEDY),
    (7, None, SEEDED),
    (5, 1, SEEDED),
    (3, 0, SEEDED),
)
"""Length of the prompt, slot of the adapter and sampling of each request."""


def adapters_of(model: Transformer) -> dict[int, AdapterWeights]:
    """Of unequal ranks."""
    return {slot: random_adapter(model.adapted_sizes, slot, rank) for slot, rank in enumerate((8, 3))}


def runners(step_ops: type[StepOps], *, graphs: bool = False, drafts: bool = False) -> MakeRunner:
    """Makes device runners with adapters in their slots."""

    def make(model: Transformer, **settings: Any) -> DeviceRunner:
        runner = DeviceRunner(model, step_ops(), **settings)
        runner.allocate_adapters(SLOTS, 8)
        if graphs:
            runner.capture_graphs(rerun, runner.graph_sizes(drafts=drafts))
        for slot, weights in adapters_of(model).items():
            runner.put_adapter(slot, runner.pack_adapter(weights))
            assert runner.is_resident(slot)
        return runner

    return make


@cache
def merged_text(folder: Path) -> list[list[int]]:
    """The tokens of each request, computed alone with its adapter merged."""
    ops = CpuOps(CpuProfile(torch.float32, threads=1, products="plain", min_rows=1, probe_us={}))
    texts = []
    for index in range(len(ROWS)):
        checkpoint = open_checkpoint(folder)
        model = load_model(checkpoint, ops, checkpoint.config.max_position)
        assert isinstance(model, Transformer)
        slot = ROWS[index][1]
        if slot is not None:
            merge(model, adapters_of(model)[slot])
        harness = Harness(TorchModel(model))
        add(harness, index, adapted=False)
        texts += [generated.tokens for generated in harness.run().values()]
    return texts


def add(harness: Harness, index: int, *, adapted: bool = True) -> Request:
    length, slot, params = ROWS[index]
    request = harness.add(
        prompt(length), params, max_tokens=5, seed=index + 1, salt=bytes([0 if slot is None else 1 + slot])
    )
    if adapted:
        request.adapter_slot = slot
    return request


def generate(harness: Harness) -> list[list[int]]:
    """A prompt in chunks, then one is preempted."""
    requests = [add(harness, index) for index in range(len(ROWS))]
    harness.step()
    harness.step()
    preempted = next(request for request in requests if request in harness.scheduler.running)
    harness.scheduler.preempt(preempted.id)
    return [generated.tokens for generated in harness.run().values()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("adapters") / "model", "qwen2", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("load", "make_runner"),
    [
        (load_reference, runners(ReferenceStepOps)),
        (load_reference, runners(ReferenceStepOps, graphs=True)),
        (load_triton, runners(TritonStepOps)),
        (load_triton, runners(TritonStepOps, graphs=True)),
    ],
    ids=["reference", "reference-graphs", "triton", "triton-graphs"],
)
def test_text_is_that_of_merged_weights(
    folder: Path, load: Callable[[Path], Transformer], make_runner: MakeRunner
) -> None:
    harness = Harness(load(folder), chunk_tokens=17, max_running=3, make_runner=make_runner)
    texts = generate(harness)
    assert texts == merged_text(folder)
    assert len(set(map(tuple, texts))) == len(texts)


def test_text_with_drafts(folder: Path) -> None:
    """In steps that are replayed, filled up by tokens that no adapter changes."""
    make_runner = runners(ReferenceStepOps, graphs=True, drafts=True)
    harness = Harness(load_reference(folder), make_runner=make_runner, speculator=Speculator([Coin()], FixedDepth(3)))
    assert generate(harness) == merged_text(folder)
    assert isinstance(harness.runner, DeviceRunner)
    assert harness.runner.launches.replayed_total


def test_steps_without_adapters_launch_nothing_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(load_reference(folder), make_runner=runners(ReferenceStepOps))
    assert isinstance(harness.runner, DeviceRunner)
    monkeypatch.setattr(harness.runner._model.adapters, "of_step", None)
    add(harness, 1)
    assert [generated.tokens for generated in harness.run().values()] == merged_text(folder)[1:2]


def test_graphs_of_their_own() -> None:
    plain, adapted = (graph_sizes(2, 100, drafts=True, adapted=adapted) for adapted in (False, True))
    assert set(adapted.keys) == {*plain.keys, *(key._replace(adapted=True) for key in plain.keys)}
    request = running_request([5] * 4, 0, [0])
    rows = [ScheduledRow(request, 3, 1, True)]
    assert arrange(rows, adapted).key == arrange(rows, plain).key == GraphKey(1, 1)
    request.adapter_slot = 2
    assert arrange(rows, adapted).key == GraphKey(1, 1, adapted=True)
    assert arrange(rows, plain).key is None
    assert arrange(rows, plain).adapted
