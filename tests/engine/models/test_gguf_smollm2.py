"""The real file that every machine can have."""

from pathlib import Path

import numpy as np

from engine.checkpoints.checkpoint import open_checkpoint
from engine.models.config import ModelConfig, RopeConfig
from kernels.arrays import BFLOAT16


def test_its_shape(smollm2_file: Path) -> None:
    assert open_checkpoint(smollm2_file).config == ModelConfig(
        family="llama",
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_position=8192,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=100_000.0),
        windows=(None,) * 30,
        tie_embeddings=True,
        eos_token_ids=(2,),
        bos_token_id=1,
    )


def test_all_its_weights(smollm2_file: Path, tmp_path: Path) -> None:
    expanded = dict(open_checkpoint(smollm2_file, tmp_path).tensors(BFLOAT16))
    assert len(expanded) == 272
    assert sum(tensor.size for tensor in expanded.values()) == 134_515_008
    # The second time they come out of the cache. Equality also says that none of them is NaN.
    for name, tensor in open_checkpoint(smollm2_file, tmp_path).tensors(BFLOAT16):
        assert np.array_equal(tensor, expanded[name]), name


def test_its_text(smollm2_file: Path) -> None:
    processor = open_checkpoint(smollm2_file).text_processor()
    ids = processor.encode_chat([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])
    assert processor.decode(ids, skip_special_tokens=False) == (
        "<|im_start|>system\na<|im_end|>\n<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n"
    )
