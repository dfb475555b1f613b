"""A model that a GPU computes is loaded for it, sized by what it leaves, and placed on it. Torch's ops stand in."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from engine.config import BLOCK_TOKENS
from engine.execution.device import placement
from engine.execution.device.runner import DeviceRunner
from engine.memory.kv_memory import DeviceMemory
from engine.models.kv_groups import MAX_UNUSED
from engine.models.transformer import Transformer
from kernels.reference_ops import ReferenceOps
from kernels.reference_step import ReferenceStepOps
from tests.engine.execution.device.harness import REFERENCE_GRAPHS
from tests.engine.execution.harness import Harness, load_tiny

PROMPTS = [list(range(10, 60)), list(range(20, 37))]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
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
    monkeypatch.setattr("engine.engine.select_ops", lambda *_: GpuOps(torch.device("cpu"), torch.float32))
    monkeypatch.setattr("engine.runtime.model_loading.select_step_ops", lambda ops: ReferenceStepOps())
    monkeypatch.setattr(placement, "measure_memory", lambda *_, drafts: memory)
    monkeypatch.setattr(placement, "place", place)
    return models


def test_it_says_what_it_says_on_a_cpu(tiny_folders: dict[str, Path], placed: list[Transformer]) -> None:
    folder = tiny_folders["llama"]
    on_cpu = Harness(load_tiny(folder))
    for prompt in PROMPTS:
        on_cpu.add(prompt, max_tokens=GREEDY.max_tokens or 0)
    expected = [generated.tokens for generated in on_cpu.run().values()]
    config = EngineConfig(drafts={"large": "small"}, scheduler=SLOTS)
    with Engine.load({"large": folder, "small": folder}, config) as engine:
        assert [list(choice.token_ids) for [choice] in engine.generate("large", PROMPTS, GREEDY)] == expected
        assert [type(runtime.executor) for runtime in engine._core._runtimes.values()] == [DeviceRunner] * 2
        assert len(placed) == 2
        assert "of the GPU's" in str(engine.hardware["kv memory of large"])
        assert engine.stats()["large"].speculation is None, "on a GPU no model drafts"


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
