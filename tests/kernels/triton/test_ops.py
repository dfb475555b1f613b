"""The op table: models computed with it equal the same models on the CPU, through prefill, chunks and decode."""

from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import microscaling
from kernels.layout import BLOCK_TOKENS
from kernels.ops import SamplingColumns
from kernels.reference_ops import ReferenceOps
from kernels.triton.ops import TritonOps
from kernels.weights import KVScales
from tests.kernels.triton.interpreter import round_to_fp8_as_a_gpu
from tests.kernels.triton.model_steps import loaded, logits_of
from tests.support.kernel_tensors import DEVICE, random
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint

CASES = [
    ("mistral", torch.float32, 1e-4),  # with windows
    ("qwen2", torch.float32, 1e-4),  # with biases
    ("qwen3", torch.float16, 2e-2),  # with norms of heads
    ("qwen3", torch.bfloat16, 1e-1),
    ("gemma2", torch.float32, 1e-4),  # with softcaps
]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("on-gpu")
    families: tuple[TinyFamily, ...] = ("mistral", "qwen2", "qwen3", "gemma2")
    return {family: make_checkpoint(root / family, family) for family in families}


@pytest.mark.parametrize(("family", "dtype", "tolerance"), CASES)
def test_a_models_logits_are_equal(family: str, dtype: torch.dtype, tolerance: float, folders: dict[str, Path]) -> None:
    expected = logits_of(loaded(folders[family], ReferenceOps(DEVICE, dtype)))
    actual = logits_of(loaded(folders[family], TritonOps(DEVICE, dtype)))
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def test_kv_in_fp8_changes_logits_a_little(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values keep four bits of their fraction: logits move, by far less than they differ among themselves."""
    round_to_fp8_as_a_gpu(monkeypatch)
    folder = folders["qwen2"]
    ops = TritonOps(DEVICE, torch.float32, KVScales(key=0.05, value=0.02))
    assert ops.allocate_kv(1, 2, 2, 16).dtype == torch.float8_e4m3fn
    plain = logits_of(loaded(folder, ReferenceOps(DEVICE, torch.float32)))
    coarse = logits_of(loaded(folder, ops))
    moved = float((coarse - plain).square().mean().sqrt() / plain.std())
    assert 1e-3 < moved < 0.1


def test_an_embedding_table_in_blocks_is_expanded() -> None:
    """GGUF files may have one in MXFP4; its rows, and a tied head, are plain numbers."""
    generator = np.random.default_rng(0)
    pairs, exponents = generator.integers(0, 256, (9, 32), np.uint8), generator.integers(120, 125, (9, 2), np.uint8)
    ops, table = TritonOps(DEVICE, torch.float32), torch.from_numpy(microscaling.floats(pairs, exponents)).to(DEVICE)
    embedding, ids = ops.pack_embedding(microscaling.blocks(pairs, exponents)), torch.tensor([3, 0, 8], device=DEVICE)
    assert torch.equal(embedding(ids), table[ids])
    assert torch.equal(ops.tied_head(embedding)(torch.eye(64, device=DEVICE)), table.T)


def test_blocks_of_the_pool() -> None:
    ops = TritonOps(DEVICE, torch.float16)
    kv = ops.allocate_kv(2, 4, 2, 16)
    assert kv.shape == (2, 4, BLOCK_TOKENS, 2, 2, 16)
    assert not kv.any()
    kv[:, 1] = 1.0
    ops.copy_blocks(kv, torch.tensor([1], device=DEVICE), torch.tensor([3], device=DEVICE))
    ops.clear_blocks(kv, torch.tensor([1], device=DEVICE))
    assert kv.sum(dim=(0, 2, 3, 4, 5)).tolist() == [0, 0, 0, kv[:, 3].numel()]


def test_tokens_are_drawn_as_the_reference_draws_them() -> None:
    rows, vocab_size = 3, 300
    columns = SamplingColumns(
        inverse_temperature=torch.tensor([1.0, 1.0, 2.0], device=DEVICE),
        noise_scale=torch.tensor([0.0, 1.0, 1.0], device=DEVICE),
        top_k=torch.tensor([vocab_size, vocab_size, 5], device=DEVICE),
        top_p=torch.tensor([1.0, 1.0, 0.9], device=DEVICE),
        min_p=torch.zeros(rows, device=DEVICE),
        keys=torch.tensor([[0, 0], [7, 11], [13, 17]], device=DEVICE),
    )
    logits = random(rows, vocab_size, dtype=torch.float32)
    expected = ReferenceOps(DEVICE, torch.float32).sample(logits.clone(), columns)
    assert torch.equal(TritonOps(DEVICE, torch.float32).sample(logits, columns), expected)


def test_it_says_what_it_is() -> None:
    said = TritonOps(DEVICE, torch.float16, KVScales(key=1.0, value=1.0)).describe()
    assert said["backend"] == "triton"
    assert (said["dtype"], said["kv dtype"]) == ("float16", "float8_e4m3fn")
