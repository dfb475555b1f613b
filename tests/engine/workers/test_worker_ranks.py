"""An engine on two ranks in a process of its own: streams outlive a rank."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.engine import Engine
from engine.models.config import UnsupportedCheckpoint
from engine.request import PromptInput, SamplingParams
from engine.runtime.engine_call import EngineCall
from engine.workers.worker_engine import WorkerEngine

CONFIG = EngineConfig(device="cpu", dtype="float32", kv_cache_bytes=4 << 20, threads=1, salt_key=b"salt")
PROMPT = [1, 5, 9, 20, 33, 7, 7, 4]
SEEDED = SamplingParams(seed=7, max_tokens=60, ignore_eos=True)


def ranks_of(process: int) -> Iterator[int]:
    """The processes of a process's ranks, as the kernel lists its children."""
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in (task / "children").read_text(encoding="utf-8").split():
            if b"engine.execution.parallel.rank" in Path(f"/proc/{child}/cmdline").read_bytes():
                yield int(child)


async def read(engine: Engine | WorkerEngine, *, killing: bool = False) -> list[int]:
    """The tokens of an answer. `killing`: rank 1 is killed after some of them."""
    tokens: list[int] = []
    async with engine.submit("m", EngineCall([PromptInput(PROMPT, SEEDED)])) as stream:
        while batch := await stream.next_batch():
            tokens += [token for delta in batch for token in delta.token_ids]
            if killing and len(tokens) > 5:
                assert isinstance(engine, WorkerEngine)
                assert engine.supervisor.pid is not None
                [rank] = ranks_of(engine.supervisor.pid)
                os.kill(rank, signal.SIGKILL)
                killing = False
    return tokens


async def test_a_stream_outlives_a_rank(tiny_folders: dict[str, Path]) -> None:
    """The engine ends with its rank, is started again, and the text is the same."""
    models = {"m": tiny_folders["llama"]}
    with Engine.load(models, CONFIG) as engine:
        expected = await read(engine)
    with WorkerEngine.load(models, replace(CONFIG, tensor_parallel=2)) as engine:
        assert await read(engine) == expected
        assert await read(engine, killing=True) == expected
        assert engine.requests.replays_total == 1


def test_a_model_that_cannot_be_cut_is_refused_by_name(tiny_folders: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"model m: .*3 does not divide num_heads 4"):
        WorkerEngine.load({"m": tiny_folders["llama"]}, replace(CONFIG, tensor_parallel=3))
