"""Models with latent attention: of a token they store the latent and the rotated dimensions alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.checkpoints.checkpoint import open_checkpoint
from engine.config import EngineConfig
from engine.engine import Engine
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.kv_groups import mixed_blocks, one_group
from engine.models.loader import host_model, load_model
from engine.request import SamplingParams
from gateway.config.settings import Settings
from gateway.process.model_memory import size_of
from kernels.arrays import BFLOAT16
from kernels.cpu.native.library import load
from kernels.cpu.native_ops import NativeOps, computes_natively
from kernels.layout import BLOCK_TOKENS, HeadShape, block_numbers
from kernels.reference_ops import ReferenceOps
from tests.engine.execution.harness import forward_logits, load_tiny, prompt
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import make_checkpoint, reference_model

LATENT: tuple[TinyFamily, ...] = ("deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "glm4_moe_lite")
PUBLISHED: dict[str, Any] = {
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "kv_lora_rank": 512,
    "q_lora_rank": 96,
}
"""The dimensions of DeepSeek-V2 and V3, but for the latent of queries."""
native = pytest.mark.skipif(load() is None, reason="the native library is not built: make install, with a C++ compiler")


@pytest.fixture(scope="module")
def published_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("published") / "model", "deepseek_v3", **PUBLISHED)


def config_of(folder: Path) -> ModelConfig:
    return open_checkpoint(folder).config


@pytest.mark.parametrize("family", LATENT)
def test_the_memory_of_a_token(family: TinyFamily, tiny_folders: dict[str, Path]) -> None:
    """Rank and rotated dimensions times the width, for each layer, whatever the number of heads."""
    folder = tiny_folders[family]
    config = config_of(folder)
    assert config.heads_of(0) == HeadShape(1, 24 + 8, keys_only=True)
    for model, width in [(load_tiny(folder), 4), (load_tiny(folder, torch.bfloat16), 2)]:
        assert model.allocate_kv(5).nbytes == 5 * BLOCK_TOKENS * config.num_layers * (24 + 8) * width
    assert size_of(Settings(dtype="float32"), folder).kv_token_bytes == 4 * config.num_layers * (24 + 8)


@native
@pytest.mark.parametrize(("int8", "token_bytes"), [(False, 576 * 2), (True, 576 + 2)])
def test_the_memory_of_a_token_with_published_dimensions(published_folder: Path, int8: bool, token_bytes: int) -> None:
    checkpoint = open_checkpoint(published_folder)
    model = load_model(checkpoint, NativeOps(1, int8_kv=int8), 64)
    layers = checkpoint.config.num_layers
    assert host_model(model).allocate_kv(7).nbytes == 7 * BLOCK_TOKENS * layers * token_bytes
    blocks = mixed_blocks(checkpoint.config, one_group(layers))
    assert blocks is not None
    assert blocks.starts(block_numbers) == ([BLOCK_TOKENS * 576 * layer for layer in range(layers)], 9216 * layers)


@pytest.mark.parametrize("kv_dtype", ["auto", pytest.param("int8", marks=native)])
def test_as_many_blocks_as_the_bytes_of_a_token_allow(published_folder: Path, kv_dtype: Any) -> None:
    layers = config_of(published_folder).num_layers
    dtype: Any = "float32" if kv_dtype == "auto" else "bfloat16"
    token_bytes = 4 * 576 if kv_dtype == "auto" else 576 + 2
    config = EngineConfig(dtype=dtype, kv_dtype=kv_dtype, kv_cache_bytes=2 << 20, threads=1)
    with Engine.load({"model": published_folder}, config) as engine:
        assert engine.stats()["model"].num_blocks == (2 << 20) // (BLOCK_TOKENS * layers * token_bytes)


@pytest.mark.parametrize("chunk_tokens", [1, 33, 512])
def test_logits_with_published_dimensions(published_folder: Path, chunk_tokens: int) -> None:
    tokens = prompt(70)
    with torch.no_grad():
        expected = reference_model(published_folder)(torch.tensor([tokens])).logits[0]
    actual = forward_logits(load_tiny(published_folder), tokens, chunk_tokens)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)
    if chunk_tokens == 33:
        checkpoint = open_checkpoint(published_folder)
        defined = host_model(load_model(checkpoint, ReferenceOps(torch.device("cpu"), torch.float32), 128))
        torch.testing.assert_close(forward_logits(defined, tokens, 33), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not computes_natively(), reason="products are not native here")
@pytest.mark.parametrize("int8", [False, True])
def test_native_logits_with_published_dimensions(published_folder: Path, int8: bool) -> None:
    """As near as bf16 lets them be; and in any chunks the same to the bit."""
    tokens, checkpoint = prompt(70), open_checkpoint(published_folder)
    with torch.no_grad():
        expected = reference_model(published_folder)(torch.tensor([tokens])).logits[0]
    model = host_model(load_model(checkpoint, NativeOps(2, int8_kv=int8), 128))
    whole = forward_logits(model, tokens, 512)
    similarity = torch.nn.functional.cosine_similarity(whole, expected)
    assert similarity.median() > 0.999
    for chunk_tokens in (1, 7, 33):
        assert torch.equal(forward_logits(model, tokens, chunk_tokens), whole)


@pytest.mark.parametrize("family", LATENT)
@pytest.mark.parametrize(
    "kind", ["float32", pytest.param("bfloat16", marks=native), pytest.param("int8", marks=native)]
)
def test_an_engine_serves_them_with_prefix_hits_and_drafts_by_lookup(
    family: str, kind: Any, tiny_folders: dict[str, Path]
) -> None:
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    dtype: Any = "bfloat16" if kind == "int8" else kind
    kv_dtype: Any = "int8" if kind == "int8" else "auto"
    texts = []
    for ngram in (False, True):
        config = EngineConfig(dtype=dtype, kv_dtype=kv_dtype, kv_cache_bytes=8 << 20, threads=1, ngram=ngram)
        with Engine.load({"latent": tiny_folders[family]}, config) as engine:
            for _ in range(2):
                answers = engine.generate("latent", ["a b c d e f g h i j k l m n o p q r"] * 3, params)
                texts += [choice.token_ids for choices in answers for choice in choices]
    assert all(text == texts[0] for text in texts)


@native
def test_weights_may_be_rounded_at_load(tmp_path: Path) -> None:
    """But for the products by head, which stay in the compute dtype, whatever their widths."""
    folder = make_checkpoint(
        tmp_path / "model", "deepseek_v3", kv_lora_rank=24, q_lora_rank=64, v_head_dim=16, moe_intermediate_size=64
    )
    config = EngineConfig(dtype="bfloat16", kv_cache_bytes=8 << 20, threads=1, quantize="int8", kv_dtype="int8")
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    with Engine.load({"latent": folder}, config) as engine:
        [[alone]] = engine.generate("latent", ["a b c"], params)
        for choices in engine.generate("latent", ["a b c"] * 3, params):
            assert choices[0].token_ids == alone.token_ids


def test_a_gpu_refuses_by_name_what_its_kernels_do_not_read(tmp_path: Path) -> None:
    class OnGpu:
        on_gpu, dtype = True, BFLOAT16

        def __init__(self, kv_dtype: str) -> None:
            self._kv_dtype = kv_dtype

        def describe(self) -> dict[str, str]:
            return {"dtype": "bfloat16", "kv dtype": self._kv_dtype}

    plain, odd = (make_checkpoint(tmp_path / str(rank), "deepseek_v2_lite", kv_lora_rank=rank) for rank in (24, 26))
    with pytest.raises(UnsupportedCheckpoint, match="a rank of 26 and 8 rotated dimensions: together not a multiple"):
        load_model(open_checkpoint(odd), OnGpu("bfloat16"), 64)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedCheckpoint, match="kv_dtype: a GPU keeps latents in bfloat16, not in float8_e4m3fn"):
        load_model(open_checkpoint(plain), OnGpu("float8_e4m3fn"), 64)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value"),
    [("windows", (8, None, None)), ("qk_norm", True), ("attention_softcap", 30.0), ("attention_sinks", True)],
)
def test_what_no_latent_attention_has_is_refused(field: str, value: Any, tiny_folders: dict[str, Path]) -> None:
    config = config_of(tiny_folders["deepseek_v2"])
    with pytest.raises(UnsupportedCheckpoint, match=f"latent attention: with {field}"):
        replace(config, **{field: value})


@pytest.mark.parametrize("rank", [25, 570])
def test_a_latent_that_attention_has_no_room_for_is_refused(rank: int, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "deepseek_v3", kv_lora_rank=rank)
    with pytest.raises(UnsupportedCheckpoint, match=f"latent attention: a rank of {rank} and 8 rotated"):
        config_of(folder)
