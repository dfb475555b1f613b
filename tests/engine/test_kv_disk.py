"""An engine that keeps KV blocks on disk: a prompt is found after a restart, with the same answer."""

import asyncio
import time
from pathlib import Path

import pytest

from engine import Engine, EngineConfig, SamplingParams
from engine.memory.tiers import TierStats
from kernels.cpu import native

if (native.level() or native.Level.PORTABLE) < native.Level.AVX2:
    pytest.skip("the native library does not compute here", allow_module_level=True)

PROMPT = [3 + (index * 7) % 50 for index in range(100)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
FULL_BLOCKS = 6


def engine_of(folder: Path, disk: Path | None, **settings: object) -> Engine:
    config = EngineConfig(
        device="cpu",
        threads=1,
        kv_cache_bytes=1 << 20,
        salt_key=b"k" * 32,
        kv_disk_folder=disk,
        kv_disk_bytes=1 << 21,
        kv_disk_idle_seconds=0.0,
        **settings,  # type: ignore[arg-type]
    )
    return Engine.load({"tiny": folder}, config)


def answer(engine: Engine, tenant: str = "acme") -> tuple[list[int], int]:
    """The tokens of an answer, and the prompt's tokens that were cached."""

    async def collect() -> tuple[list[int], int]:
        tokens, cached = list[int](), 0
        async for delta in engine.stream("tiny", PROMPT, GREEDY, tenant=tenant):
            tokens += delta.token_ids
            cached = delta.cached_tokens
        return tokens, cached

    return asyncio.run(collect())


def tier_of(engine: Engine) -> TierStats:
    tier = engine.stats()["tiny"].tier
    assert tier is not None
    return tier


def await_written(engine: Engine, blocks: int) -> None:
    until = time.monotonic() + 20
    while tier_of(engine).written_bytes_total < blocks * block_bytes(engine):
        assert time.monotonic() < until, "the blocks are not written"
        time.sleep(0.01)


def block_bytes(engine: Engine) -> int:
    return next(iter(engine.core._runtimes.values())).executor.kv_block_bytes  # type: ignore[attr-defined,no-any-return]


def always_fetch(engine: Engine) -> None:
    """A tiny model computes a block faster than any disk reads it: predict that it is slow."""
    fetches = next(iter(engine.core._runtimes.values())).scheduler.fetches
    assert fetches is not None
    fetches._tier._predict_ns = fetches._tier._fetching._predict_ns = lambda start, tokens: 10**12


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_the_text_is_the_same_after_a_restart(tiny_folders: dict[str, Path], tmp_path: Path, kv_dtype: str) -> None:
    with engine_of(tiny_folders["llama"], None, kv_dtype=kv_dtype) as engine:
        expected, cached = answer(engine)
        assert cached == 0
        assert engine.stats()["tiny"].tier is None
    with engine_of(tiny_folders["llama"], tmp_path, kv_dtype=kv_dtype) as engine:
        always_fetch(engine)
        assert answer(engine) == (expected, 0)
        await_written(engine, FULL_BLOCKS)
    with engine_of(tiny_folders["llama"], tmp_path, kv_dtype=kv_dtype) as engine:
        always_fetch(engine)
        assert answer(engine, "another tenant") == (expected, 0)
        assert tier_of(engine).hit_blocks_total == 0
        assert answer(engine) == (expected, FULL_BLOCKS * 16)
        assert tier_of(engine).hit_blocks_total == FULL_BLOCKS
        assert tier_of(engine).waiting == 0


def test_a_corrupted_file_costs_time_and_no_answer(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    with engine_of(tiny_folders["llama"], tmp_path) as engine:
        always_fetch(engine)
        expected, _ = answer(engine)
        await_written(engine, FULL_BLOCKS)
    [path] = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    headers = 4096 * 3
    content[headers:] = bytes(byte ^ 1 for byte in content[headers:])
    path.write_bytes(content)
    with engine_of(tiny_folders["llama"], tmp_path) as engine:
        always_fetch(engine)
        assert answer(engine)[0] == expected
        assert tier_of(engine).failed_blocks_total > 0


def test_a_tenant_is_forgotten(tiny_folders: dict[str, Path], tmp_path: Path) -> None:
    with engine_of(tiny_folders["llama"], tmp_path) as engine:
        always_fetch(engine)
        answer(engine)
        await_written(engine, FULL_BLOCKS)
        engine.forget_tenant("acme")
        until = time.monotonic() + 20
        while tier_of(engine).used_bytes:
            assert time.monotonic() < until, "the tenant is not forgotten"
            time.sleep(0.01)
    with engine_of(tiny_folders["llama"], tmp_path) as engine:
        assert tier_of(engine).used_bytes == 0


def test_a_drafted_model_keeps_none(
    tiny_folders: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_folders["llama"]
    config = EngineConfig(
        device="cpu", threads=1, kv_cache_bytes=1 << 20, kv_disk_folder=tmp_path, drafts={"large": "small"}
    )
    with Engine.load({"large": folder, "small": folder}, config) as engine:
        assert engine.stats()["large"].tier is None
        assert engine.stats()["small"].tier is not None
    assert "large keeps no KV on disk: its draft model's KV is in the same blocks" in caplog.text
