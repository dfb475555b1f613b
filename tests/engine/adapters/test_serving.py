"""Adapters in a running engine: failures, waits, and what is separate between them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.adapters.folder import digest_of
from engine.adapters.source import AdapterSource
from engine.completion import collect
from engine.config import EngineConfig
from engine.engine import Engine
from engine.errors import AdapterUnavailable, UnservableRequest
from engine.request import SamplingParams, TextDelta
from tests.support.peft_adapters import make_adapter

PROMPT = list(range(5, 45))
GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8)


@pytest.fixture(scope="module")
def engine(tiny_folders: dict[str, Path]) -> Iterator[Engine]:
    config = EngineConfig(
        device="cpu", dtype="float32", kv_cache_bytes=1 << 22, adapter_slots=1, adapter_wait_seconds=1.0
    )
    with Engine.load({"m": tiny_folders["llama"]}, config) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def folder(tiny_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("adapter")
    make_adapter(made, tiny_folders["llama"])
    return made


async def generate(
    engine: Engine, adapter: AdapterSource | None, params: SamplingParams = GREEDY, tenant: str = ""
) -> list[list[int]]:
    stream = engine.stream("m", PROMPT, params, adapter=adapter, tenant=tenant)
    return [list(completion.token_ids) for completion in await collect(stream, params.n)]


def test_files_that_have_changed_are_not_loaded(engine: Engine, folder: Path) -> None:
    with pytest.raises(AdapterUnavailable):
        asyncio.run(generate(engine, AdapterSource("0" * 64, folder)))
    assert asyncio.run(generate(engine, AdapterSource(digest_of(folder), folder)))


def test_missing_files_fail_the_request_and_no_other(engine: Engine, folder: Path, tmp_path: Path) -> None:
    async def run() -> None:
        missing, there = AdapterSource("1" * 64, tmp_path / "none"), AdapterSource(digest_of(folder), folder)
        plain, failed, adapted = await asyncio.gather(
            generate(engine, None), generate(engine, missing), generate(engine, there), return_exceptions=True
        )
        assert isinstance(failed, AdapterUnavailable)
        assert isinstance(plain, list)
        assert isinstance(adapted, list)
        assert plain != adapted

    asyncio.run(run())


def test_a_request_that_waits_too_long_fails(
    engine: Engine, folder: Path, tiny_folders: dict[str, Path], tmp_path: Path
) -> None:
    """The only slot is leased by a stream that is not read to its end."""
    make_adapter(tmp_path, tiny_folders["llama"], seed=5)

    async def run() -> None:
        endless = SamplingParams(temperature=0, ignore_eos=True)
        stream = engine.stream("m", PROMPT, endless, adapter=AdapterSource(digest_of(folder), folder))
        first = await anext(stream)
        assert isinstance(first, TextDelta)
        reader = asyncio.ensure_future(_drain(stream))
        waiting = generate(engine, AdapterSource(digest_of(tmp_path), tmp_path))
        results = await asyncio.gather(waiting, return_exceptions=True)
        await reader
        assert isinstance(results[0], AdapterUnavailable | list)  # a list where the endless answer ended before

    asyncio.run(run())


async def _drain(stream: object) -> None:
    async for _ in stream:  # type: ignore[attr-defined]
        pass


def test_choices_share_the_prompt_and_the_adapter(engine: Engine, folder: Path) -> None:
    source = AdapterSource(digest_of(folder), folder)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=8, n=3)
    first, *others = asyncio.run(generate(engine, source, params))
    assert others == [first, first]
    assert asyncio.run(generate(engine, source)) == [first]


def test_a_model_without_slots_takes_no_adapter(tiny_folders: dict[str, Path], folder: Path) -> None:
    config = EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=1 << 22, adapter_slots=0)
    with Engine.load({"m": tiny_folders["llama"]}, config) as engine:
        assert engine.adapter_slots("m") == 0
        with pytest.raises(UnservableRequest, match="takes no adapters"):
            asyncio.run(generate(engine, AdapterSource("0" * 64, folder)))
