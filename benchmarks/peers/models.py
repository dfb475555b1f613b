"""The same random weights for all: a folder for Turnpike and vLLM, GGUF files for llama.cpp.

Made once. Their tokenizer has a token for each byte and a made-up word for each other id: a prompt of n ASCII
characters is n tokens to every server. Answers are text, too: the special tokens, and bytes that are no character on
their own, have zeros for weights, so that some other token is always likelier.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import gguf
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.checkpoints import HALF_BILLION, random_weights

TENTH = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 32_000,
    "hidden_size": 768,
    "intermediate_size": 2688,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
VERSION = 2
"""Of what is written; files of another one are left alone, and not used."""
SHAPES: Mapping[str, Mapping[str, Any]] = {"0.1B": TENTH, "0.5B": HALF_BILLION}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_SPECIAL = ("<pad>", "<s>", "</s>")
_MERGE = ("Ġ", "Ġ")
"""Two blanks, which no prompt has: readers of GGUF want merges there."""
_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One set of weights as each server takes it."""

    folder: Path
    bf16: Path
    q4_0: Path


def prepare(name: str, config: Mapping[str, Any], root: Path) -> Checkpoint:
    """Make what is missing of it under `root`."""
    made = Checkpoint(root / name, root / f"{name}-BF16.gguf", root / f"{name}-Q4_0.gguf")
    if not (made.folder / "config.json").exists():
        _write_folder(config, made.folder)
    kinds = {made.bf16: GGMLQuantizationType.BF16, made.q4_0: GGMLQuantizationType.Q4_0}
    missing = [path for path in kinds if not path.exists()]
    if missing:
        weights = load_file(made.folder / "model.safetensors")
        for path in missing:
            write_gguf(config, weights, kinds[path], path)
    return made


def _write_folder(config: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = random_weights(dict(config))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name][silent_tokens(config["vocab_size"])] = 0
    if config["tie_word_embeddings"]:
        del weights["lm_head.weight"]
    if config["model_type"] == "qwen3":
        for layer in range(config["num_hidden_layers"]):
            for norm in ("q_norm", "k_norm"):
                name = f"model.layers.{layer}.self_attn.{norm}.weight"
                weights[name] = torch.ones(config["head_dim"], dtype=torch.bfloat16)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    _tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))
    stated = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _SPECIAL[1],
        "eos_token": _SPECIAL[2],
        "pad_token": _SPECIAL[0],
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")  # last: it says that all is there


def _vocabulary(size: int) -> list[str]:
    symbols = [*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "".join(_MERGE)]
    words = ("Ġ" + "".join(letters) for length in count(3) for letters in product(ascii_lowercase, repeat=length))
    return symbols + [next(words) for _ in range(size - len(symbols))]


def silent_tokens(size: int) -> list[int]:
    """Ids of the tokens that are no text by themselves."""
    decoder = decoders.ByteLevel()
    vocabulary = _vocabulary(size)
    return [index for index, token in enumerate(vocabulary) if token in _SPECIAL or "\ufffd" in decoder.decode([token])]


def _tokenizer(size: int) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(_vocabulary(size))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[_MERGE]))
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_gguf(
    config: Mapping[str, Any], weights: Mapping[str, torch.Tensor], kind: GGMLQuantizationType, path: Path
) -> None:
    """All matrices, embedding and head among them, as `kind`; vectors in float32."""
    partial = path.with_suffix(".partial")
    writer = GGUFWriter(partial, config["model_type"])
    add_shape(writer, config, kind)
    add_tokenizer(writer, config["vocab_size"])
    for name, weight in weights.items():
        numbers = weight.float()
        if config["model_type"] == "llama" and ("q_proj" in name or "k_proj" in name):
            numbers = _interleaved(numbers, config["head_dim"])
        stored = kind if numbers.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(_gguf_name(name), quants.quantize(numbers.contiguous().numpy(), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(path)


def add_shape(writer: GGUFWriter, config: Mapping[str, Any], kind: GGMLQuantizationType) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    types = {GGMLQuantizationType.BF16: gguf.LlamaFileType.MOSTLY_BF16}
    writer.add_file_type(types.get(kind, gguf.LlamaFileType.MOSTLY_Q4_0))


def add_tokenizer(writer: GGUFWriter, size: int) -> None:
    special, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(_vocabulary(size))
    writer.add_token_types([special] * len(_SPECIAL) + [normal] * (size - len(_SPECIAL)))
    writer.add_token_merges([" ".join(_MERGE)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


def _gguf_name(name: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in whole:
        return f"{whole[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.weight"


def _interleaved(rows: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of half-split rope, as Hugging Face has them, in the order of llama.cpp's: pairs in adjacent rows."""
    return rows.view(-1, 2, head_dim // 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)
