"""The check of an adapter in a process of its own."""

import asyncio
from pathlib import Path

import pytest

from engine.adapters.checker import check_adapter, facts_of
from engine.adapters.errors import UnsupportedAdapter
from engine.checkpoints.checkpoint import open_checkpoint
from tests.support.adapter_folders import GOOD, RANK, tensors, write


@pytest.fixture
def folder(tiny_folders: dict[str, Path], tmp_path: Path) -> Path:
    config = open_checkpoint(tiny_folders["llama"]).config
    weights = tensors(config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim)
    return write(tmp_path / "adapter", weights, {**GOOD, "base_model_name_or_path": "some/base"})


def test_the_process_finds_the_same_facts(folder: Path, tiny_folders: dict[str, Path]) -> None:
    base = tiny_folders["llama"]
    facts = asyncio.run(check_adapter(folder, base, max_rank=64, max_bytes=1 << 24))
    assert facts == facts_of(folder, base, 64, 1 << 24)
    assert (facts.rank, facts.targets, facts.base_model) == (RANK, ("q_proj", "v_proj"), "some/base")
    assert facts.bytes == sum(file.stat().st_size for file in folder.iterdir())


def test_a_refusal_comes_from_the_process(folder: Path, tiny_folders: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedAdapter, match=r"r: 4 is not a whole number in 1\.\.3"):
        asyncio.run(check_adapter(folder, tiny_folders["llama"], max_rank=3, max_bytes=1 << 24))


def test_a_check_has_a_time_limit(folder: Path, tiny_folders: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedAdapter, match="takes over"):
        asyncio.run(check_adapter(folder, tiny_folders["llama"], max_rank=64, max_bytes=1 << 24, seconds=0.01))
