"""The check of an adapter in a process of its own: facts of a good one, refusals, and the time limit."""

import asyncio
from pathlib import Path

import pytest

from engine.adapters.checker import check_adapter, facts_of
from engine.adapters.errors import UnsupportedAdapter
from engine.adapters.folder import digest_of
from engine.adapters.source import AdapterFacts
from tests.support.adapter_files import DOWN, HIDDEN, KV_OUTPUTS, RANK, pair, query, write_adapter

MAX_RANK, MAX_BYTES = 64, 1 << 20


def check(folder: Path, model: Path, seconds: float = 60.0) -> AdapterFacts:
    return asyncio.run(check_adapter(folder, model, max_rank=MAX_RANK, max_bytes=MAX_BYTES, seconds=seconds))


def test_facts(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    value = pair("model.layers.1.self_attn.v_proj", HIDDEN, KV_OUTPUTS, rank=2)
    folder = write_adapter(tmp_path, query() | value, rank_pattern={"v_proj": 2})
    facts = check(folder, tiny_folders["llama"])
    assert facts == AdapterFacts(
        digest=digest_of(folder),
        rank=RANK,
        targets=("q_proj", "v_proj"),
        parameters=RANK * 2 * HIDDEN + 2 * (HIDDEN + KV_OUTPUTS),
        bytes=sum(path.stat().st_size for path in folder.iterdir()),
        base_model="tiny",
    )
    assert facts == facts_of(folder, tiny_folders["llama"], MAX_RANK, MAX_BYTES)


def test_refusal(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    tensors = query()
    tensors[DOWN][0, 0] = float("nan")
    with pytest.raises(UnsupportedAdapter) as caught:
        check(write_adapter(tmp_path, tensors), tiny_folders["llama"])
    assert str(caught.value) == f"tensor {DOWN} has numbers that are not finite"


def test_time_limit(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAdapter, match=r"takes over 0\.01 s"):
        check(write_adapter(tmp_path), tiny_folders["llama"], seconds=0.01)


def test_digest_changes_with_any_byte(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path)
    digests = {digest_of(folder)}
    assert digests == {digest_of(folder)}
    changes = 0
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        good = (folder / name).read_bytes()
        places = range(0, len(good), max(1, len(good) // 50))
        for content in [*(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in places), good[:-1], good + b" "]:
            (folder / name).write_bytes(content)
            digests.add(digest_of(folder))
            changes += 1
        (folder / name).write_bytes(good)
    assert len(digests) == changes + 1


def test_digest_knows_which_file_has_a_byte(tmp_path: Path) -> None:
    contents = [(b"ab", b"c"), (b"a", b"bc"), (b"abc", b""), (b"c", b"ab")]
    digests = set()
    for config, weights in contents:
        (tmp_path / "adapter_config.json").write_bytes(config)
        (tmp_path / "adapter_model.safetensors").write_bytes(weights)
        digests.add(digest_of(tmp_path))
    assert len(digests) == len(contents)


def test_digest_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedAdapter, match=r"^adapter_config\.json: cannot be read \(No such file"):
        digest_of(tmp_path)
