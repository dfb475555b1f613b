"""Time to the first token of a session's turn whose KV is on disk: `python -m benchmarks.kv_tiers`.

A prompt of 2,048 tokens on SmolLM2, computed; again, from memory; and after a restart of the engine, from disk, with
the file in the kernel's page cache and without.
"""

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path

from engine import Engine, EngineConfig, SamplingParams
from engine.catalog.catalog import fetch
from engine.memory.tiers.store import file_of
from gateway.config.settings import Settings

SESSION_TOKENS = 2048
KV_BYTES = 256 << 20
DISK_BYTES = 1 << 30
WRITE_SECONDS = 60.0


def _engine(folder: Path) -> Engine:
    config = EngineConfig(
        device="cpu",
        kv_cache_bytes=KV_BYTES,
        salt_key=bytes(32),
        kv_disk_folder=folder,
        kv_disk_bytes=DISK_BYTES,
        kv_disk_idle_seconds=0.0,
    )
    return Engine.load({"model": fetch("smollm2", Settings().models_dir)}, config)


async def _turn(engine: Engine, prompt: list[int]) -> tuple[float, int, list[int]]:
    """Milliseconds to the first token, cached tokens, and the answer."""
    started, first_ms, cached, tokens = time.perf_counter(), 0.0, 0, list[int]()
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    async for delta in engine.stream("model", prompt, params, tenant="benchmark"):
        if delta.token_ids:
            first_ms = first_ms or (time.perf_counter() - started) * 1e3
        tokens += delta.token_ids
        cached = delta.cached_tokens
    return first_ms, cached, tokens


def _await_written(engine: Engine) -> float:
    """Wait until the session is on disk. Returns MiB written."""
    until = time.monotonic() + WRITE_SECONDS
    before, written = -1, 0
    while written == 0 or written != before:
        assert time.monotonic() < until, "the session is not written"
        tier = engine.stats()["model"].tier
        assert tier is not None
        before, written = written, tier.written_bytes_total
        time.sleep(0.5)
    return written / 2**20


def _drop_page_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def main() -> None:
    rng = random.Random(0)
    warm, prompt = ([rng.randrange(16, 32_000) for _ in range(count)] for count in (64, SESSION_TOKENS))
    with tempfile.TemporaryDirectory() as root:
        with _engine(Path(root)) as engine:
            asyncio.run(_turn(engine, warm))
            cold_ms, cached, expected = asyncio.run(_turn(engine, prompt))
            print(f"computed:                    {cold_ms:8.1f} ms, {cached} tokens cached")
            written = _await_written(engine)
            memory_ms, cached, _ = asyncio.run(_turn(engine, prompt))
            print(
                f"from memory:                 {memory_ms:8.1f} ms, {cached} tokens cached; {written:.0f} MiB on disk"
            )
        for name, drops in (("page cache", False), ("disk", True)):
            if drops:
                _drop_page_cache(file_of(Path(root), "model"))
            with _engine(Path(root)) as engine:
                asyncio.run(_turn(engine, warm))
                ms, cached, tokens = asyncio.run(_turn(engine, prompt))
                assert tokens == expected, "another answer after a restart"
                tier = engine.stats()["model"].tier
                assert tier is not None
                print(
                    f"after a restart, {name:10}: {ms:8.1f} ms, {cached} tokens cached, {cold_ms / ms:.0f} x faster; "
                    f"{tier.hit_blocks_total} blocks fetched"
                )


if __name__ == "__main__":
    main()
