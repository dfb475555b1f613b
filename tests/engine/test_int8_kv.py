"""An engine whose KV is kept in int8: more tokens in its memory, and the same text whatever happens to a request."""

from pathlib import Path

import pytest

from engine import Engine, EngineConfig, SamplingParams, SchedulerConfig
from kernels.cpu import native

if (native.level() or native.Level.PORTABLE) < native.Level.AVX2:
    pytest.skip("the native library does not compute here", allow_module_level=True)

PROMPTS = [list(range(10, 60)), list(range(10, 45)), [7, 8, 9] * 10]
GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
SEEDED = SamplingParams(temperature=0.8, top_p=0.9, seed=3, n=2, max_tokens=30, ignore_eos=True)


def engine_of(folder: Path, kv_cache_bytes: int = 1 << 20, max_running: int = 4, **settings: object) -> Engine:
    scheduler = SchedulerConfig(max_running=max_running, step_tokens=64)
    config = EngineConfig(kv_dtype="int8", threads=2, kv_cache_bytes=kv_cache_bytes, scheduler=scheduler, **settings)  # type: ignore[arg-type]
    return Engine.load({"large": folder, "small": folder}, config)


def texts_of(engine: Engine) -> list[tuple[int, ...]]:
    """Twice the same, so that prompts are prefix hits; forks among them."""
    rounds = [engine.generate("large", PROMPTS, params) for params in (GREEDY, SEEDED, GREEDY, SEEDED)]
    return [choice.token_ids for answers in rounds for choices in answers for choice in choices]


@pytest.mark.parametrize("drafts", [{}, {"large": "small"}], ids=["no drafts", "drafts"])
def test_text_is_the_same_alone(tiny_folders: dict[str, Path], drafts: dict[str, str], always_draft: None) -> None:
    """In a batch, from the prefix cache, in copied blocks, with drafts of a model whose KV is in int8 too."""
    with engine_of(tiny_folders["llama"], drafts=drafts) as engine:
        together = texts_of(engine)
    with engine_of(tiny_folders["llama"], max_running=1, prefix_cache=False) as engine:
        alone = [
            choice.token_ids
            for params in (GREEDY, SEEDED, GREEDY, SEEDED)
            for prompt in PROMPTS
            for choice in engine.generate("large", [prompt], params)[0]
        ]
    assert together == alone


def test_memory_holds_as_many_more_tokens(tiny_folders: dict[str, Path]) -> None:
    """A head of 16 numbers takes 18 bytes in place of 32."""
    folder, tokens = tiny_folders["llama"], []
    for kv_dtype in ("auto", "int8"):
        config = EngineConfig(kv_dtype=kv_dtype, kv_cache_bytes=1 << 20, threads=2)  # type: ignore[arg-type]
        with Engine.load({"a": folder}, config) as engine:
            tokens.append(int(str(engine.hardware["kv memory of a"]).split()[0]))
    assert tokens[1] // 16 == tokens[0] // 16 * 32 // 18
