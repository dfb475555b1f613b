"""From a checkpoint's tensors to a model: fuse what is computed together, pack it for the device, drop the rest."""

from collections.abc import Callable

import torch
from torch import Tensor

from engine.models.checkpoint import WeightSource
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.rope import RopeTable
from engine.models.transformer import LayerWeights, ModelWeights, Transformer
from kernels.ops import HeadNorms, Linear, Ops

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in all)."""

_LAYER_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def load_model(source: WeightSource, ops: Ops, max_positions: int, progress: Progress | None = None) -> Transformer:
    """Read the weights in `ops.dtype` and make the model ready to run positions below `max_positions`.

    Raises:
        UnsupportedCheckpoint: a tensor is missing.
    """
    config = source.config
    assembler = _Assembler(config, ops)
    total = read = 0
    total = source.weight_bytes
    with torch.inference_mode():
        for name, tensor in source.tensors(ops.dtype):
            assembler.add(name, tensor)
            if progress is not None:
                read = min(read + tensor.nbytes, total)
                progress(read, total)
        weights = assembler.finish()
        rope = RopeTable(config.rope, config.head_dim, max_positions, ops.dtype, ops.device)
    if progress is not None:
        progress(total, total)
    return Transformer(config, weights, rope, ops)


class _Assembler:
    """Collects tensors in whatever order they come; packs a fused weight as soon as its parts are there."""

    def __init__(self, config: ModelConfig, ops: Ops) -> None:
        self._config, self._ops = config, ops
        self._loose: dict[str, Tensor] = {}
        self._fused: dict[str, Linear] = {}
        biases = {
            "qkv": config.qkv_bias,
            "output": config.o_bias,
            "gate_up": config.mlp_bias,
            "down": config.mlp_bias,
        }
        self._group_of: dict[str, str] = {}
        self._missing: dict[str, set[str]] = {}
        self._parts: dict[str, tuple[str, ...]] = {}
        for layer in range(config.num_layers):
            for kind, parts in _LAYER_PARTS.items():
                group = f"model.layers.{layer}.{kind}"
                self._parts[group] = tuple(f"model.layers.{layer}.{part}" for part in parts)
                suffixes = ("weight", "bias") if biases[kind] else ("weight",)
                names = {f"{part}.{suffix}" for part in self._parts[group] for suffix in suffixes}
                self._missing[group] = names
                self._group_of.update(dict.fromkeys(names, group))

    def add(self, name: str, tensor: Tensor) -> None:
        self._loose[name] = tensor
        group = self._group_of.get(name)
        if group is None:
            return
        self._missing[group].discard(name)
        if not self._missing[group]:
            self._fused[group] = self._fuse(self._parts[group])

    def _fuse(self, parts: tuple[str, ...]) -> Linear:
        weight = torch.cat([self._loose.pop(f"{part}.weight") for part in parts])
        has_bias = f"{parts[0]}.bias" in self._loose
        bias = torch.cat([self._loose.pop(f"{part}.bias") for part in parts]) if has_bias else None
        return self._ops.pack_linear(weight, bias)

    def finish(self) -> ModelWeights:
        for names in self._missing.values():
            for name in sorted(names):
                raise UnsupportedCheckpoint(f"tensor {name} is missing")
        embedding = self._take("model.embed_tokens.weight")
        head = embedding if self._config.tie_embeddings else self._take("lm_head.weight")
        return ModelWeights(
            embedding=embedding,
            layers=tuple(self._layer(index) for index in range(self._config.num_layers)),
            final_norm=self._take("model.norm.weight"),
            head=self._ops.pack_linear(head, None),
        )

    def _layer(self, index: int) -> LayerWeights:
        prefix = f"model.layers.{index}"
        return LayerWeights(
            attention_norm=self._take(f"{prefix}.input_layernorm.weight"),
            qkv=self._fused[f"{prefix}.qkv"],
            head_norms=self._head_norms(f"{prefix}.self_attn") if self._config.qk_norm else None,
            output=self._fused[f"{prefix}.output"],
            mlp_norm=self._take(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=self._fused[f"{prefix}.gate_up"],
            down=self._fused[f"{prefix}.down"],
        )

    def _head_norms(self, prefix: str) -> HeadNorms:
        query, key = self._take(f"{prefix}.q_norm.weight"), self._take(f"{prefix}.k_norm.weight")
        return HeadNorms(query, key, self._config.rms_norm_eps)

    def _take(self, name: str) -> Tensor:
        if name not in self._loose:
            raise UnsupportedCheckpoint(f"tensor {name} is missing")
        # A copy of its own: small tensors must not keep a whole memory-mapped file alive.
        return self._loose.pop(name).to(self._ops.device, copy=True)
