"""GGUF files written by the `gguf` package: what comes out is what went in."""

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as BlockType
from safetensors.numpy import load_file

from engine.checkpoints.gguf.file import GGUFCheckpoint
from engine.checkpoints.gguf.header import BLOCK_TYPES
from engine.checkpoints.huggingface.folder import HFCheckpoint
from engine.models.config import RopeConfig, UnsupportedCheckpoint
from kernels.arrays import BFLOAT16, FLOAT32, Array
from tests.engine.models.tiny_gguf import make_gguf, permuted, write
from tests.support.tiny_families import TinyFamily
from tests.support.tiny_models import TinyFolder

RELATIVE_ERROR = {
    BlockType.F32: 0.0,
    BlockType.F16: 2**-11,
    BlockType.BF16: 2**-8,
    BlockType.Q8_0: 0.01,
    BlockType.Q5_1: 0.05,
    BlockType.Q5_0: 0.08,
    BlockType.Q4_1: 0.1,
    BlockType.Q4_0: 0.15,
    BlockType.MXFP4: 0.34,
}
"""Error of a stored weight over the largest weight of its row: at most half a step of the type's grid."""

K_QUANT_SCALES = {
    BlockType.Q2_K: (80, 82),
    BlockType.Q3_K: (108,),
    BlockType.Q4_K: (0, 2),
    BlockType.Q5_K: (0, 2),
    BlockType.Q6_K: (208,),
    BlockType.IQ4_NL: (0,),
    BlockType.IQ4_XS: (0,),
}
"""Where the float16 scales of a block lie, in bytes."""


def test_block_sizes_are_those_of_the_format() -> None:
    for block in BLOCK_TYPES.values():
        code = BlockType(block.code)
        assert (code.name, gguf.GGML_QUANT_SIZES[code]) == (block.name, (block.weights, block.bytes))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_float32_file_equals_its_source_folder(family: TinyFamily, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder(family, sliding_window=None) if family == "mistral" else tiny_folder(family)
    checkpoint, source = GGUFCheckpoint(make_gguf(tmp_path / "tiny.gguf", folder)), HFCheckpoint(folder)
    weights, expected = dict(checkpoint.tensors(FLOAT32)), dict(source.tensors(FLOAT32))
    assert weights.keys() == expected.keys()
    for name, tensor in weights.items():
        assert np.array_equal(tensor, expected[name]), name
    for field in ("vocab_size", "num_kv_heads", "head_dim", "rms_norm_eps", "rope", "windows", "qkv_bias", "qk_norm"):
        assert getattr(checkpoint.config, field) == getattr(source.config, field), field
    assert checkpoint.config.tie_embeddings == source.config.tie_embeddings
    assert checkpoint.config.eos_token_ids == source.config.eos_token_ids
    assert checkpoint.weight_bytes == source.weight_bytes


@pytest.mark.parametrize("block_type", RELATIVE_ERROR)
def test_every_writable_type_expands_exactly(block_type: BlockType, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    checkpoint = GGUFCheckpoint(make_gguf(tmp_path / "tiny.gguf", folder, block_type, tokenizer=False))
    source = load_file(folder / "model.safetensors")
    for name, tensor in checkpoint.tensors(FLOAT32):
        expected = source[name]
        if tensor.ndim == 1:
            assert np.array_equal(tensor, expected)
            continue
        # Rows are quantised one by one, so their order does not touch their values.
        stored = gguf.quants.quantize(expected, block_type)
        assert np.array_equal(tensor, gguf.quants.dequantize(stored, block_type)), name
        largest = np.abs(expected).max(axis=1, keepdims=True)
        assert (np.abs(tensor - expected) <= RELATIVE_ERROR[block_type] * largest).all(), name


@pytest.mark.parametrize("block_type", K_QUANT_SCALES)
def test_k_quants_are_expanded_exactly(block_type: BlockType, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    """The package cannot write them: random blocks, with scales that are numbers."""
    folder = tiny_folder("llama", hidden_size=256, head_dim=64, intermediate_size=256, num_hidden_layers=1)
    config = json.loads((folder / "config.json").read_text())
    plain = GGUFCheckpoint(make_gguf(tmp_path / "plain.gguf", folder, tokenizer=False))
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    for key, value in plain._metadata.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    expected: dict[str, Array] = {}
    stored_rows: dict[str, np.ndarray] = {}
    for name, part in plain._stored.items():
        info = part.info
        if len(info.shape) == 1:
            writer.add_tensor(info.name, np.ones(info.shape, np.float32))
            continue
        weights, size = gguf.GGML_QUANT_SIZES[block_type]
        blocks = random.integers(0, 256, (info.shape[0], info.shape[1] // weights, size), np.uint8)
        for offset in K_QUANT_SCALES[block_type]:
            scales = random.uniform(0.01, 0.1, blocks.shape[:2]).astype(np.float16)
            blocks[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
        stored_rows[name] = blocks.reshape(info.shape[0], -1)
        expected[name] = gguf.quants.dequantize(stored_rows[name], block_type)
        in_file = permuted(name, stored_rows[name], config)
        writer.add_tensor(info.name, in_file, raw_dtype=block_type)
    write(writer)
    checkpoint = GGUFCheckpoint(tmp_path / "k.gguf")
    for name, tensor in checkpoint.tensors(FLOAT32):
        if name in expected:
            assert np.array_equal(tensor, expected[name]), name
            assert np.array_equal(checkpoint.raw_tensor(name).rows, stored_rows[name]), name


def test_biases_of_q_and_k_are_reordered_too(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("llama", attention_bias=True, mlp_bias=True)
    checkpoint = GGUFCheckpoint(make_gguf(tmp_path / "tiny.gguf", folder, BlockType.Q8_0))
    assert (checkpoint.config.qkv_bias, checkpoint.config.o_bias, checkpoint.config.mlp_bias) == (True, True, True)
    source = load_file(folder / "model.safetensors")
    for name, tensor in checkpoint.tensors(FLOAT32):
        if name.endswith(".bias"):
            assert np.array_equal(tensor, source[name]), name


def test_a_compute_dtype_is_rounded_to_once(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    checkpoint = GGUFCheckpoint(make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"), BlockType.Q4_1))
    exact = dict(checkpoint.tensors(FLOAT32))
    for name, tensor in checkpoint.tensors(BFLOAT16):
        assert tensor.dtype == BFLOAT16
        assert np.array_equal(tensor, exact[name].astype(BFLOAT16)), name


def test_the_text_processor_reads_the_files_own_tokenizer(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tiny_folder("llama")
    ours = GGUFCheckpoint(make_gguf(tmp_path / "tiny.gguf", folder)).text_processor()
    messages = [{"role": "user", "content": "What is the capital of France? <|im_end|>"}]
    ids = ours.encode_chat(messages)
    assert ids == HFCheckpoint(folder).text_processor().encode_chat(messages)
    assert ids.count(2) == 1


class TestRope:
    def config(self, folder: Path, tmp_path: Path, **keys: object) -> GGUFCheckpoint:
        named = {f"llama.rope.{key.replace('__', '.')}": value for key, value in keys.items()}
        return GGUFCheckpoint(make_gguf(tmp_path / "rope.gguf", folder, keys=named))

    def test_linear(self, tiny_folder: TinyFolder, tmp_path: Path) -> None:
        config = self.config(tiny_folder("llama"), tmp_path, scaling__type="linear", scaling__factor=4.0).config
        assert config.rope == RopeConfig(theta=10_000.0, kind="linear", factor=4.0, original_max_position=512)
        assert config.max_position == 2048

    def test_yarn(self, tiny_folder: TinyFolder, tmp_path: Path) -> None:
        keys = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__original_context_length": 128}
        config = self.config(tiny_folder("llama"), tmp_path, **keys).config
        assert config.rope == RopeConfig(theta=10_000.0, kind="yarn", factor=4.0, original_max_position=128)
        assert config.max_position == 512

    def test_a_factor_of_yarns_logits_multiplies_yarns_own(self, tiny_folder: TinyFolder, tmp_path: Path) -> None:
        keys = {"scaling__type": "yarn", "scaling__factor": 4.0, "scaling__attn_factor": 0.5}
        rope = self.config(tiny_folder("llama"), tmp_path, **keys).config.rope
        assert rope.attention_factor == pytest.approx(0.5 * (0.1 * np.log(4.0) + 1.0))

    def test_divisors_of_the_frequencies(self, tiny_folder: TinyFolder, tmp_path: Path) -> None:
        divisors = [1.0, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0, 8.0]
        path = make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"), frequency_divisors=divisors)
        checkpoint = GGUFCheckpoint(path)
        assert checkpoint.config.rope == RopeConfig(theta=10_000.0, frequency_divisors=tuple(divisors))
        assert "rope_freqs.weight" not in dict(checkpoint.tensors(FLOAT32))

    def test_divisors_of_another_length_are_refused(self, tiny_folder: TinyFolder, tmp_path: Path) -> None:
        path = make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"), frequency_divisors=[1.0])
        with pytest.raises(UnsupportedCheckpoint, match="rope frequency divisors"):
            GGUFCheckpoint(path)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"llama.expert_count": 8}, "llama.expert_used_count"),
        ({"llama.expert_count": 2000, "llama.expert_used_count": 2}, "llama.expert_count"),
        ({"llama.logit_scale": 2.0}, "llama.logit_scale"),
        ({"llama.rope.scaling.type": "longrope"}, "llama.rope.scaling.type"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 1e30}, "llama.rope.scaling.factor"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count"),
        ({"llama.attention.head_count": [4, 2]}, "llama.attention.head_count"),
        ({"llama.attention.head_count_kv": 3}, "num_kv_heads"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length"),
        ({"llama.attention.causal": False}, "llama.attention.causal"),
        ({"llama.block_count": 3}, "model.layers.2.input_layernorm.weight is missing"),
        ({"llama.block_count": 1}, "model.layers.1"),
        ({"llama.block_count": 4_000_000_000}, "llama.block_count"),
        ({"llama.feed_forward_length": 97}, "model.layers.0.mlp.gate_proj.weight has shape"),
        ({"llama.context_length": None}, "llama.context_length"),
        ({"general.type": "adapter"}, "general.type"),
        ({"general.alignment": 48}, "general.alignment"),
        ({"split.count": 2}, "split.count"),
        ({"tokenizer.ggml.eos_token_id": 512}, "512"),
        ({"tokenizer.ggml.tokens": ["x"] * 513}, "tokenizer.ggml.tokens"),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_by_the_key(
    keys: dict[str, object], named: str, tiny_folder: TinyFolder, tmp_path: Path
) -> None:
    path = make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama"), keys=keys)
    with pytest.raises(UnsupportedCheckpoint) as caught:
        GGUFCheckpoint(path)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    write(writer)
    with pytest.raises(UnsupportedCheckpoint, match=r"general\.architecture: 'mamba'"):
        GGUFCheckpoint(tmp_path / "x.gguf")


@pytest.mark.parametrize("block_type", [BlockType.TQ1_0, BlockType.TQ2_0])
def test_an_unknown_type_is_refused_by_tensor(block_type: BlockType, tiny_folder: TinyFolder, tmp_path: Path) -> None:
    shape = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 256, "num_hidden_layers": 1}
    path = make_gguf(tmp_path / "tiny.gguf", tiny_folder("llama", **shape), block_type)
    with pytest.raises(UnsupportedCheckpoint, match=rf"tensor \S+\.weight: stored as type {int(block_type)}"):
        GGUFCheckpoint(path)


def test_an_unknown_tensor_is_refused(tiny_folder: TinyFolder, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(tiny_folder("qwen3"), folder)
    source = GGUFCheckpoint(make_gguf(tmp_path / "a.gguf", folder))
    assert source.config.family == "qwen3"
    data = (tmp_path / "a.gguf").read_bytes()
    (tmp_path / "b.gguf").write_bytes(data.replace(b"blk.1.ffn_norm.weight", b"blk.1.ffn_nerm.weight"))
    with pytest.raises(UnsupportedCheckpoint, match=r"tensor blk\.1\.ffn_nerm\.weight is not understood"):
        GGUFCheckpoint(tmp_path / "b.gguf")


@pytest.mark.parametrize("data", [b"", b"GGUF", b"not a model at all", b"\x80\x04pickled"])
def test_a_file_of_another_kind_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UnsupportedCheckpoint):
        GGUFCheckpoint(tmp_path / "x")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="cannot be read"):
        GGUFCheckpoint(tmp_path / "nothing.gguf")
