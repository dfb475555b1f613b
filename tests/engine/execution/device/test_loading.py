"""A model that a GPU computes is loaded for it, sized by what it leaves, and placed on it. Torch's ops stand in."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.config import BLOCK_TOKENS
from engine.execution.device import placement
from engine.execution.device.runner import DeviceRunner
from engine.memory.kv_memory import DeviceMemory, InsufficientMemory
from engine.models.config import UnsupportedCheckpoint
from engine.models.kv_groups import MAX_UNUSED
from engine.models.transformer import Transformer
from engine.speculation.device import draft_placement
from kernels.dispatch import DeviceUnavailable
from kernels.reference_ops import ReferenceOps
from kernels.reference_step import ReferenceStepOps
from kernels.triton.tuning_adapters import rank_bucket
from tests.engine.execution.device.harness import REFERENCE_GRAPHS, rerun
from tests.engine.execution.harness import Harness, load_tiny

PROMPTS = [list(range(10, 60)), list(range(20, 37))]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.3, seed=3, max_tokens=12, ignore_eos=True)
SLOTS = SchedulerConfig(max_running=2, step_tokens=64)


class GpuOps(ReferenceOps):
    """On the processor, and says otherwise."""

    @property
    def on_gpu(self) -> bool:
        return True


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[Transformer]:
    """The models that were put onto the GPU."""
    models: list[Transformer] = []

    def place(model: Transformer, step_ops: ReferenceStepOps, **sizes: int) -> Any:
        assert isinstance(step_ops, ReferenceStepOps)
        models.append(model)
        return REFERENCE_GRAPHS(model, **sizes)

    memory = DeviceMemory(total_bytes=100 << 20, taken_bytes=60 << 20, step_bytes=20 << 20, graph_bytes=10 << 20)

    def measure(*arguments: Any, drafts: bool) -> DeviceMemory:
        if (draft_steps := arguments[-1]) is not None:
            for run in draft_steps.largest:
                run()
            draft_steps.capture(rerun)
        return memory

    monkeypatch.setattr("engine.engine.select_ops", lambda *_, **__: GpuOps(torch.device("cpu"), torch.float32))
    for module in ("model_loading", "draft_loading"):
        monkeypatch.setattr(f"engine.runtime.{module}.select_step_ops", lambda ops: ReferenceStepOps())
    monkeypatch.setattr("engine.runtime.model_loading.check_parts", lambda parts: None)
    monkeypatch.setattr(placement, "measure_memory", measure)
    monkeypatch.setattr(placement, "place", place)
    monkeypatch.setattr(draft_placement, "try_capture", lambda device, capture_graphs: capture_graphs(rerun))
    return models


def test_it_says_what_it_says_on_a_cpu(tiny_folders: dict[str, Path], placed: list[Transformer]) -> None:
    folder = tiny_folders["llama"]
    on_cpu = Harness(load_tiny(folder))
    for prompt in PROMPTS:
        on_cpu.add(prompt, max_tokens=GREEDY.max_tokens or 0)
    expected = [generated.tokens for generated in on_cpu.run().values()]
    with Engine.load({"large": folder, "small": folder}, EngineConfig(scheduler=SLOTS)) as engine:
        assert [list(choice.token_ids) for [choice] in engine.generate("large", PROMPTS, GREEDY)] == expected
        assert [type(runtime.executor) for runtime in engine._core._runtimes.values()] == [DeviceRunner] * 2
        assert len(placed) == 2
        assert "of the GPU's" in str(engine.hardware["kv memory of large"])


def test_a_model_drafts_for_another(
    tiny_folders: dict[str, Path], placed: list[Transformer], always_draft: None
) -> None:
    """All drafts are accepted, as it is the same model. Its KV is counted in the pool of its target."""
    folder = tiny_folders["llama"]
    models = {"large": folder, "small": folder}
    blocks = {}
    texts = {}
    for drafts in ({}, {"large": "small"}):
        with Engine.load(models, EngineConfig(drafts=drafts, scheduler=SLOTS, kv_cache_bytes=1 << 20)) as engine:
            answers = [engine.generate("large", PROMPTS, params) for params in (GREEDY, SEEDED)]
            texts[len(drafts)] = [choice.token_ids for choices in answers for [choice] in choices]
            blocks[len(drafts)] = {name: stats.num_blocks for name, stats in engine.stats().items()}
            speculation = engine.stats()["large"].speculation
    assert texts[1] == texts[0]
    assert speculation is not None
    [counts] = speculation.drafts
    assert counts.proposer == "draft"
    assert 30 < counts.accepted_total == counts.proposed_total
    block_bytes = placed[0].allocate_kv(1).nbytes
    assert blocks[1]["small"] == blocks[0]["small"]
    assert blocks[1]["large"] == ((1 << 20) - 2 * block_bytes) // (2 * block_bytes)


def test_what_a_draft_model_on_a_gpu_may_not_be(tiny_folders: dict[str, Path], placed: list[Transformer]) -> None:
    models = {"large": tiny_folders["llama"], "small": tiny_folders["qwen3_5"]}
    with pytest.raises(UnsupportedCheckpoint, match="small cannot draft: linear attention is not supported"):
        Engine.load(models, EngineConfig(drafts={"large": "small"}, scheduler=SLOTS))


def test_a_draft_model_for_which_there_is_no_room(
    tiny_folders: dict[str, Path], placed: list[Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(draft_placement, "try_capture", full)
    models = {"large": tiny_folders["llama"], "small": tiny_folders["llama"]}
    with pytest.raises(InsufficientMemory, match="model large: the GPU has no room for the draft model"):
        Engine.load(models, EngineConfig(drafts={"large": "small"}, scheduler=SLOTS))


@pytest.mark.parametrize(
    ("family", "parts"),
    [("llama", []), ("qwen3_5", ["delta nets"]), ("qwen3_moe", ["experts"]), ("deepseek_v2", ["experts", "latents"])],
)
@pytest.mark.usefixtures("placed")
def test_the_kernels_of_a_models_parts_are_tested_before_its_weights_are_loaded(
    family: str, parts: list[str], tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tested: list[str] = []

    def fails(of_model: list[str]) -> None:
        tested.extend(of_model)
        raise DeviceUnavailable("device cuda needs kernels")

    monkeypatch.setattr("engine.runtime.model_loading.check_parts", fails)
    with pytest.raises(DeviceUnavailable):
        Engine.load({"model": tiny_folders[family]}, EngineConfig(scheduler=SLOTS))
    assert tested == parts


def test_a_model_with_recurrent_layers_has_states_in_the_memory_of_its_kv(
    tiny_folders: dict[str, Path], placed: list[Transformer]
) -> None:
    folder = tiny_folders["qwen3_5"]
    on_cpu = Harness(load_tiny(folder))
    for prompt in PROMPTS:
        on_cpu.add(prompt, max_tokens=GREEDY.max_tokens or 0)
    expected = [generated.tokens for generated in on_cpu.run().values()]
    with Engine.load({"hybrid": folder}, EngineConfig(ngram=True, scheduler=SLOTS)) as engine:
        for _ in range(2):
            assert [list(choice.token_ids) for [choice] in engine.generate("hybrid", PROMPTS, GREEDY)] == expected
        assert "and 6 states, for 2 sequences at once" in str(engine.hardware["kv memory of hybrid"])
        states = engine.stats()["hybrid"].states
        assert states is not None
        assert states.hits_total == 2


@pytest.mark.parametrize("family", ["gemma4", "gemma4_moe", "gemma4_shared"])
def test_layers_whose_heads_differ_have_one_pool(
    family: str, tiny_folders: dict[str, Path], placed: list[Transformer]
) -> None:
    """Sized by the bytes of each layer, with a block table for each group; with drafts by lookup, and a prefix hit."""
    folder = tiny_folders[family]
    on_cpu = Harness(load_tiny(folder))
    for prompt in PROMPTS:
        on_cpu.add(prompt, max_tokens=GREEDY.max_tokens or 0)
    expected = [generated.tokens for generated in on_cpu.run().values()]
    with Engine.load({"gemma": folder}, EngineConfig(ngram=True, scheduler=SLOTS)) as engine:
        for _ in range(2):
            assert [list(choice.token_ids) for [choice] in engine.generate("gemma", PROMPTS, GREEDY)] == expected
        [model] = placed
        token_bytes, groups = 4 * sum(heads.kv_numbers for heads in model.config.kv_heads), model.kv_groups
        block_bytes = model.allocate_kv(1).nbytes
        assert groups > 1
        assert 0 <= groups * block_bytes - BLOCK_TOKENS * token_bytes <= MAX_UNUSED * groups * block_bytes
        tokens = min((2 << 20) // block_bytes // groups * BLOCK_TOKENS, 2 * model.config.max_position)
        assert str(engine.hardware["kv memory of gemma"]).startswith(f"{tokens} tokens in")


def test_adapters_of_a_model_on_a_gpu(
    tiny_folders: dict[str, Path], placed: list[Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their kernels are tested, and their slots allocated before memory is measured."""
    tested: list[str] = []
    monkeypatch.setattr("engine.runtime.model_loading.check_parts", tested.extend)
    measure = placement.measure_memory

    def measured(model: Transformer, *arguments: Any, drafts: bool) -> DeviceMemory:
        assert model.adapters is not None
        return measure(model, *arguments, drafts=drafts)

    monkeypatch.setattr(placement, "measure_memory", measured)
    config = EngineConfig(scheduler=SLOTS, adapter_slots=2, max_adapter_rank=8)
    with Engine.load({"model": tiny_folders["llama"]}, config) as engine:
        assert engine.adapter_slots("model") == 2
        engine.generate("model", PROMPTS, GREEDY)
    assert tested == ["adapters"]


@pytest.mark.usefixtures("placed")
def test_adapters_that_a_gpu_cannot_hold(tiny_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    models, config = {"model": tiny_folders["llama"]}, EngineConfig(scheduler=SLOTS, adapter_slots=2)

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(ReferenceOps, "allocate_adapters", full)
    with pytest.raises(InsufficientMemory, match="the GPU has no room for 2 adapters of rank 64: CUDA out of memory"):
        Engine.load(models, config)
    monkeypatch.setattr(ReferenceOps, "allocate_adapters", lambda self, layers, slots, rank: rank_bucket(rank))
    with pytest.raises(UnsupportedCheckpoint, match="max_adapter_rank: a GPU takes adapters of ranks up to 64, not 65"):
        Engine.load(models, replace(config, max_adapter_rank=65))
