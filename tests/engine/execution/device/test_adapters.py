"""A device runner with adapters gives the text of the torch CPU backend with each adapter merged, whatever shares the
steps."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.execution.device.graphs import GraphKey, graph_sizes
from engine.execution.device.inputs import arrange
from engine.execution.device.runner import DeviceRunner
from engine.models.loader import load_model
from engine.models.torch_model import TorchModel
from engine.models.transformer import Transformer
from engine.request import SamplingParams
from engine.scheduling.plan import ScheduledRow
from engine.speculation import FixedDepth, Speculator
from kernels.adapters import AdapterWeights
from kernels.cpu.ops import CpuOps
from kernels.cpu.probe import CpuProfile
from kernels.reference_step import ReferenceStepOps
from kernels.step import StepOps
from kernels.triton.step_ops import TritonStepOps
from tests.engine.execution.device.harness import load_reference, load_triton, rerun, running_request
from tests.engine.execution.draft_cases import Coin, Oracle
from tests.engine.execution.harness import GREEDY, Harness, MakeRunner, prompt
from tests.support.tiny_adapters import merge, random_adapter
from tests.support.tiny_models import make_checkpoint

SLOTS = 2
RANKS = {"first": 8, "second": 3, "third": 5}
"""Of each adapter. One more than there are slots."""
SEEDED = SamplingParams(temperature=0.9, ignore_eos=True)
ROWS: tuple[tuple[int, str | None, SamplingParams], ...] = (
    (19, "first", GREEDY),
    (7, None, SEEDED),
    (5, "second", SEEDED),
    (3, "third", SEEDED),
    (3, "first", SEEDED),
)
"""Length of the prompt, adapter and sampling of each request."""


def adapters_of(model: Transformer) -> dict[str, AdapterWeights]:
    return {name: random_adapter(model.adapted_sizes, rank, rank) for name, rank in RANKS.items()}


def runners(step_ops: type[StepOps], *, graphs: bool = False, drafts: bool = False) -> MakeRunner:
    """Makes device runners with slots for adapters."""

    def make(
        model: Transformer, *, num_blocks: int, num_slots: int, max_model_len: int, **settings: int
    ) -> DeviceRunner:
        assert not settings
        runner = DeviceRunner(
            model, step_ops(), num_blocks=num_blocks, num_slots=num_slots, max_model_len=max_model_len
        )
        runner.allocate_adapters(SLOTS, 8)
        if graphs:
            runner.capture_graphs(rerun, runner.graph_sizes(drafts=drafts))
        return runner

    return make


@cache
def merged_text(folder: Path) -> list[list[int]]:
    """The tokens of each request, computed alone with its adapter merged."""
    ops = CpuOps(CpuProfile(torch.float32, threads=1, products="plain", min_rows=1, probe_us={}))
    texts = []
    for index, (length, adapter, params) in enumerate(ROWS):
        checkpoint = open_checkpoint(folder)
        model = load_model(checkpoint, ops, checkpoint.config.max_position)
        assert isinstance(model, Transformer)
        if adapter is not None:
            merge(model, adapters_of(model)[adapter])
        harness = Harness(TorchModel(model))
        harness.add(prompt(length), params, max_tokens=4, seed=index)
        texts += [generated.tokens for generated in harness.run().values()]
    return texts


def generate(harness: Harness) -> list[list[int]]:
    """A prompt in chunks; then one is preempted. An adapter waits for the slot of another."""
    for index, (length, adapter, params) in enumerate(ROWS):
        harness.add(prompt(length), params, max_tokens=4, seed=index, adapter=adapter)
    harness.step()
    harness.step()
    harness.scheduler.preempt(next(iter(harness.scheduler.running)).id)
    return [generated.tokens for generated in harness.run().values()]


def harness_of(model: Transformer, make_runner: MakeRunner, speculator: Speculator | None = None) -> Harness:
    return Harness(
        model,
        chunk_tokens=17,
        max_running=2,
        make_runner=make_runner,
        speculator=speculator,
        adapters=adapters_of(model),
        adapter_slots=SLOTS,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("adapters") / "model", "qwen2", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("load", "make_runner"),
    [
        (load_reference, runners(ReferenceStepOps)),
        (load_reference, runners(ReferenceStepOps, graphs=True)),
        (load_triton, runners(TritonStepOps, graphs=True)),
    ],
    ids=["reference", "reference-graphs", "triton-graphs"],
)
def test_text_is_that_of_merged_weights(
    folder: Path, load: Callable[[Path], Transformer], make_runner: MakeRunner
) -> None:
    harness = harness_of(load(folder), make_runner)
    texts = generate(harness)
    assert texts == merged_text(folder)
    assert len(set(map(tuple, texts))) == len(texts)
    stats = harness.scheduler.stats().adapters
    assert stats is not None
    assert stats.evictions_total > 0


def test_text_with_drafts(folder: Path) -> None:
    """In steps that are replayed, filled up by tokens that no adapter changes."""
    make_runner = runners(ReferenceStepOps, graphs=True, drafts=True)
    oracle = Oracle({str(index): text for index, text in enumerate(merged_text(folder))})
    harness = harness_of(load_reference(folder), make_runner, Speculator([Coin(oracle)], FixedDepth(3)))
    assert generate(harness) == merged_text(folder)
    assert isinstance(harness.runner, DeviceRunner)
    assert harness.runner.launches.replayed_total


def test_steps_without_adapters_launch_nothing_for_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = harness_of(load_reference(folder), runners(ReferenceStepOps))
    assert isinstance(harness.runner, DeviceRunner)
    monkeypatch.setattr(harness.runner._model.adapters, "of_step", None)
    length, _, params = ROWS[1]
    harness.add(prompt(length), params, max_tokens=4, seed=1)
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
