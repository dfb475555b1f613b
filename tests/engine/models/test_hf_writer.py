"""Folders that are written are read as what was meant: the arithmetic, the tokens, the chat prompts."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from engine.checkpoints.checkpoint import open_checkpoint
from engine.checkpoints.huggingface.tokenizer import read_config
from engine.checkpoints.huggingface.writer import can_be_written, config_json, write_folder
from engine.checkpoints.text import text_processor_from_folder
from engine.distillation.decoder import Decoder
from engine.distillation.layers import layer_tensors
from engine.models.config import RopeConfig, UnsupportedCheckpoint
from engine.models.layout import EMBEDDING, HEAD
from engine.text.processor import TextProcessor
from kernels.arrays import FLOAT32
from kernels.exchange import array_of, tensor_of
from tests.engine.execution.harness import forward_logits, load_tiny
from tests.engine.models.tiny_gguf import make_gguf
from tests.engine.text.corpus import CORPUS
from tests.support.tiny_families import PLAIN_FAMILIES, TinyFamily
from tests.support.tiny_models import make_checkpoint

CHAT = [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "1234 <|im_end|> a?"}]


def same_text(one: TextProcessor, other: TextProcessor) -> None:
    for text in CORPUS:
        assert one.encode(text) == other.encode(text), ascii(text)
    assert one.tokenizer.special_texts == other.tokenizer.special_texts


@pytest.mark.parametrize("family", PLAIN_FAMILIES)
def test_a_trained_decoder_means_the_same_in_the_engine(family: TinyFamily, tmp_path: Path) -> None:
    """Logits of training and of serving over the written folder, of a student with two of three layers."""
    teacher = open_checkpoint(make_checkpoint(tmp_path / "teacher", family, num_hidden_layers=3))
    weights = {name: tensor_of(array) for name, array in teacher.tensors(FLOAT32)}
    config = teacher.config.of_layers((0, 2))
    student = Decoder(config, 64, layer_tensors(weights, (0, 2)))
    whole = dict(student.state_dict()) | {name: weights[name] for name in (EMBEDDING, HEAD) if name in weights}
    arrays = {name: array_of(tensor) for name, tensor in whole.items()}
    write_folder(tmp_path / "student", teacher, config, arrays, np.array([5, 3]))
    tokens = [5, 300, 17, 42, 400, 8, 9, 250, 33, 77, 120, 6, 1]
    with torch.no_grad():
        hidden = student(weights[EMBEDDING][torch.tensor([tokens])])[0]
    served = forward_logits(load_tiny(tmp_path / "student"), tokens, 64)
    torch.testing.assert_close(hidden @ weights.get(HEAD, weights[EMBEDDING]).T, served, rtol=1e-4, atol=1e-4)
    assert load_file(tmp_path / "student" / "draft.safetensors")["frequent_tokens"].tolist() == [5, 3]
    same_text(text_processor_from_folder(tmp_path / "student"), teacher.text_processor())


def test_rope_is_written_in_every_kind(tmp_path: Path) -> None:
    plain = open_checkpoint(make_checkpoint(tmp_path, "llama")).config
    stretched = RopeConfig(theta=5e5, factor=4.0, original_max_position=128)
    for rope, window in (
        (replace(stretched, kind="linear"), 512),
        (replace(stretched, kind="dynamic"), 512),
        (replace(stretched, kind="llama3", low_freq_factor=2.0), 600),
        (replace(stretched, kind="yarn", beta_fast=16.0, attention_factor=1.5), 512),
        (RopeConfig(rotary_dim=8), 512),
    ):
        config = replace(plain, rope=rope, max_position=window)
        # It compares with what is read; anything lost on the way would be refused.
        assert config_json(config)["rope_parameters"]["rope_type"] == rope.kind


@pytest.mark.parametrize(("family", "can"), [("llama", True), ("qwen3", True), ("phi3", False), ("qwen3_vl", False)])
def test_families_that_can_be_written(family: TinyFamily, can: bool, tmp_path: Path) -> None:
    config = open_checkpoint(make_checkpoint(tmp_path, family)).config
    assert can_be_written(config) == can
    if not can:
        with pytest.raises(UnsupportedCheckpoint, match=f"family {family} cannot be written"):
            config_json(config)


def test_what_has_no_words_is_refused(tmp_path: Path) -> None:
    plain = open_checkpoint(make_checkpoint(tmp_path, "llama")).config
    divided = replace(plain, rope=replace(plain.rope, frequency_divisors=(1.0,) * 8))
    with pytest.raises(UnsupportedCheckpoint, match=r"cannot be written as a Hugging Face config\.json"):
        config_json(divided)


def test_a_gguf_teachers_tokens_and_prompts_are_kept(tmp_path: Path, smollm2_file: Path) -> None:
    teacher = open_checkpoint(smollm2_file)
    write_folder(tmp_path, teacher, teacher.config, {}, np.array([1]))
    original, written = teacher.text_processor(), text_processor_from_folder(tmp_path)
    same_text(written, original)
    for conversation in (CHAT, CHAT[1:]):
        assert written.encode_chat(conversation) == original.encode_chat(conversation)
    assert written.tokenizer.bos_token_id == original.tokenizer.bos_token_id
    assert written.tokenizer.eos_token_id == original.tokenizer.eos_token_id
    config = json.loads((tmp_path / "config.json").read_text())
    assert set(original.tokenizer.eos_token_ids) <= set(config["eos_token_id"])


@pytest.mark.parametrize("adds", [True, False])
def test_a_gguf_that_begins_texts_with_bos_still_does(adds: bool, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "folder", "llama")
    keys: Mapping[str, Any] = {"tokenizer.ggml.add_bos_token": adds, "tokenizer.chat_template.tool_use": "tools"}
    teacher = open_checkpoint(make_gguf(tmp_path / "teacher.gguf", folder, keys=dict(keys)))
    write_folder(tmp_path / "student", teacher, teacher.config, {}, np.array([1]))
    same_text(text_processor_from_folder(tmp_path / "student"), teacher.text_processor())
    templates = read_config(tmp_path / "student")["chat_template"]
    assert [each["name"] for each in templates] == ["default", "tool_use"]
