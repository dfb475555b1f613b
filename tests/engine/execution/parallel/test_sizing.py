"""How many ranks an engine has, and what is refused with several."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.execution.parallel.shards import ParallelSizes
from engine.execution.parallel.sizing import ModelBytes, tensor_size
from engine.memory.kv_memory import InsufficientMemory
from engine.runtime.ranks import parallel_sizes, threads_of_rank
from kernels.dispatch import DeviceUnavailable

GIB = 1 << 30
LARGE = ModelBytes("large", weights=140 * GIB, window_kv=10 * GIB, window=32_768, num_heads=64)
SMALL = ModelBytes("small", weights=2 * GIB, window_kv=1 * GIB, window=4096, num_heads=4)


@pytest.mark.parametrize(
    ("models", "devices", "size"),
    [
        ([SMALL], [80 * GIB] * 8, 1),
        ([LARGE], [80 * GIB] * 8, 4),  # 150 GiB on two of 73.6 GiB do not fit
        ([LARGE], [141 * GIB] * 8, 2),
        ([SMALL, SMALL], [4 * GIB] * 4, 2),
    ],
)
def test_the_fewest_devices_that_hold_the_models(models: list[ModelBytes], devices: list[int], size: int) -> None:
    said: list[str] = []
    assert tensor_size(models, devices, said.append) == size
    assert said[0].startswith(f"tensor_parallel auto: {size}. {models[0].name}: ")
    assert f"{models[0].weights / GIB:.2f} GiB of weights" in said[0]
    assert f"on {size} of {len(devices)} devices" in said[0]


def test_too_little_memory_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(InsufficientMemory, match=re.escape("150.00 GiB do not fit in 92% of 1 devices of 80.00 GiB")):
        tensor_size([LARGE], [80 * GIB], lambda _: None)


def test_auto_on_a_cpu_is_one_process_and_says_why(
    tiny_folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = EngineConfig(device="cpu", tensor_parallel="auto", max_model_len=64)
    assert parallel_sizes({"m": tiny_folders["llama"]}, config) == ParallelSizes(1, 1)
    assert re.search(r"tensor_parallel auto: 1\. m: .* GiB of KV for 64 tokens: .* on 1 of 1 devices", caplog.text)


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"kv_dtype": "int8"}, "use kv_dtype auto"),
        ({"quantize": "int8"}, "use quantize none"),
        ({"device": "cuda"}, "a GPU's models are computed by one process; use 1 of both, or device cpu"),
    ],
)
def test_what_ranks_do_not_support_is_refused_by_name(settings: dict[str, Any], refused: str) -> None:
    config = EngineConfig(**{"device": "cpu", "pipeline_parallel": 2, **settings})
    with pytest.raises(DeviceUnavailable, match=f"tensor_parallel 1, pipeline_parallel 2: .*{refused}"):
        parallel_sizes({}, config)


@pytest.mark.parametrize("stated", [(0, 1), (1, 0), (16, 16)])
def test_the_number_of_ranks_is_bounded(stated: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="tensor_parallel"):
        EngineConfig(tensor_parallel=stated[0], pipeline_parallel=stated[1])


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runtime.ranks.usable_cores", lambda: 8)
    sizes = ParallelSizes(2, 2)
    assert threads_of_rank(EngineConfig(), sizes) == 2
    assert threads_of_rank(EngineConfig(threads=3), sizes) == 3
    assert threads_of_rank(EngineConfig(), ParallelSizes()) is None
    assert threads_of_rank(EngineConfig(), ParallelSizes(16)) == 1
