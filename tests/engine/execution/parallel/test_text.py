"""Engines on several processes answer as one process does: greedy and seeded text in float32."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, EngineConfig
from engine.execution.parallel.channel import Call
from engine.execution.parallel.parallel_model import ParallelModel
from tests.support.peft_adapters import make_adapter
from tests.support.rank_engines import LONG_PROMPT, MODEL, REPEATING, SEEDED, answers_of, load_engine
from tests.support.tiny_families import FAMILIES

CUTS = {"tp2": (2, 1), "tp4": (4, 1), "pp2": (1, 2), "tp2-pp2": (2, 2)}
ONE_STAGE = ("gemma4_shared", "qwen3_next", "qwen3_5_moe")
"""Families whose tiny model cannot be cut into two stages: see `test_rank_model`."""
SAMPLE = (("llama", "tp2"), ("llama", "tp2-pp2"), ("gpt_oss", "tp4"), ("deepseek_v2", "pp2"), ("qwen3_next", "tp2"))
"""In every full run; the others take twenty minutes."""
CASES = [(family, cut) for family in FAMILIES for cut in CUTS if not (family in ONE_STAGE and CUTS[cut][1] > 1)]
OTHERS = [case for case in CASES if case not in SAMPLE]
FEW_BLOCKS = {"kv_cache_bytes": 24 * 8192}
"""Of the tiny Llama's, so that requests are preempted."""


@pytest.mark.usefixtures("always_draft")
@pytest.mark.parametrize(("family", "cut"), SAMPLE, ids=["-".join(case) for case in SAMPLE])
def test_text(
    family: str, cut: str, tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_text(family, cut, tiny_folders, tmp_path, monkeypatch)


@pytest.mark.usefixtures("always_draft")
@pytest.mark.parametrize(("family", "cut"), OTHERS, ids=["-".join(case) for case in OTHERS])
def test_every_text(
    family: str, cut: str, tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_text(family, cut, tiny_folders, tmp_path, monkeypatch)


def _check_text(
    family: str, cut: str, tiny_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunked prompts, prefix hits, drafts, thresholds, penalties, a grammar, preemptions, an adapter."""
    folder, (tensor, stages) = tiny_folders[family], CUTS[cut]
    settings = FEW_BLOCKS if family == "llama" else {}
    adapter = None
    if family in ("llama", "qwen2"):
        adapter = tmp_path
        make_adapter(adapter, folder)
    with load_engine(folder, **settings) as engine:
        expected = answers_of(engine, adapter)
    with load_engine(folder, **settings, tensor_parallel=tensor, pipeline_parallel=stages) as engine:
        calls = _recorded(monkeypatch)
        engine.generate(MODEL, [REPEATING], SEEDED)
        assert (Call.DRAW if stages == 1 else Call.DRAW_HELD) in calls
        assert not {Call.LOGITS, Call.LOGITS_HELD} & set(calls), "logits are gathered for draws without thresholds"
        answers = answers_of(engine, adapter)
        stats = engine.stats()[MODEL]
    assert answers == expected
    assert stats.speculation is not None
    assert sum(each.accepted_total for each in stats.speculation.drafts) > 0
    assert stats.preemptions_total > 0 or family != "llama"
    assert adapter is None or expected["adapter"][0] != expected["adapter"][1]
    assert all(expected[name] for name in expected if name != "adapter")


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls on all ranks from now on."""
    calls: list[Call] = []
    on_all = ParallelModel.on_all

    def record(model: ParallelModel, call: Call, *arguments: Any) -> Any:
        calls.append(call)
        return on_all(model, call, *arguments)

    monkeypatch.setattr(ParallelModel, "on_all", record)
    return calls


@pytest.mark.usefixtures("always_draft")
@pytest.mark.parametrize("cut", CUTS)
def test_a_draft_model(cut: str, tiny_folders: dict[str, Path]) -> None:
    """Rank 0 computes it whole, with a table of its own, for a model on several ranks."""
    tensor, stages = CUTS[cut]
    models = {MODEL: tiny_folders["llama"], "small": tiny_folders["llama"]}
    config = EngineConfig(device="cpu", dtype="float32", threads=1, kv_cache_bytes=4 << 20, draft_depth=4)
    with Engine.load({MODEL: models[MODEL]}, config) as engine:
        expected = engine.generate(MODEL, [REPEATING, LONG_PROMPT], SEEDED)
    on_ranks = replace(config, drafts={MODEL: "small"}, tensor_parallel=tensor, pipeline_parallel=stages)
    with Engine.load(models, on_ranks) as engine:
        answers = engine.generate(MODEL, [REPEATING, LONG_PROMPT], SEEDED)
        given = engine.stats()[MODEL].speculation
    assert [[each.token_ids for each in choices] for choices in answers] == [
        [each.token_ids for each in choices] for choices in expected
    ]
    assert given is not None
    assert [each.proposer for each in given.drafts if each.accepted_total] == ["draft"]
