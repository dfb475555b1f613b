"""Builds a model from a checkpoint's tensors: fuses projections that are computed together and packs them for the
backend."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from engine.config import Quantize
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.expansion import kept_matrices
from engine.models.host_model import HostModel
from engine.models.layout import EMBEDDING, FINAL_NORM, HEAD
from engine.models.native_model import NativeModel
from engine.models.rope import rope_table
from engine.models.sources import BlockSource, WeightSource
from kernels.arrays import Array, Dtype
from kernels.cpu.native_ops import NativeOps
from kernels.weights import DENSE, E, HeadNorms, L, LayerWeights, ModelWeights, Packer, StoredWeight, V

if TYPE_CHECKING:
    from engine.models.transformer import Transformer
    from kernels.ops import Ops

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in total)."""

_ANY_FORMATS_WIDTH = 4096
"""A matrix width that every quantised format supports."""
_LAYER_PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def load_model(
    source: WeightSource,
    ops: "NativeOps | Ops",
    max_positions: int,
    progress: Progress | None = None,
    quantize: Quantize = "none",
) -> "NativeModel | Transformer":
    """Read the weights in the dtype of `ops` and build a model for positions below `max_positions`.

    Matrices in a block format that the backend computes with are kept in it; others are converted as `quantize` says.

    Raises:
        UnsupportedCheckpoint: a tensor is missing, or the model's matrices cannot be quantised on this machine.
    """
    config = source.config
    rope = rope_table(config.rope, config.head_dim, max_positions)
    if isinstance(ops, NativeOps):
        return NativeModel(config, _packed(source, ops, ops.dtype, progress, quantize), rope, ops)
    # Only here: where the native library computes, nothing needs torch.
    import torch

    from engine.models.transformer import Transformer
    from kernels.exchange import numpy_dtype

    with torch.inference_mode():
        weights = _packed(source, ops, numpy_dtype(ops.dtype), progress, quantize)
        return Transformer(config, weights, rope, ops)


def host_model(model: "NativeModel | Transformer") -> HostModel:
    """The CPU interface of a model."""
    if isinstance(model, NativeModel):
        return model
    from engine.models.torch_model import TorchModel

    return TorchModel(model)


def _packed(
    source: WeightSource, ops: Packer[V, L, E], dtype: Dtype, progress: Progress | None, quantize: Quantize
) -> ModelWeights[V, L, E]:
    if quantize != "none":
        _check_quantize(quantize, source.config, ops)
    assembler = _Assembler(source.config, ops, quantize)
    total, read = source.weight_bytes, 0
    for name, weight in _weights(source, ops, dtype):
        assembler.add(name, weight)
        if progress is not None:
            rows = weight.rows if isinstance(weight, StoredWeight) else weight
            read = min(read + rows.nbytes, total)
            progress(read, total)
    weights = assembler.finish()
    if progress is not None:
        progress(total, total)
    return weights


def _weights(
    source: WeightSource, ops: Packer[Any, Any, Any], dtype: Dtype
) -> Iterator[tuple[str, Array | StoredWeight]]:
    """Every weight once: matrices in block formats that the backend supports as they are stored, the others in
    `dtype`."""
    if not isinstance(source, BlockSource):
        yield from source.tensors(dtype)
        return
    taken = kept_matrices(source, ops.takes_blocks)
    yield from source.stored(taken)
    yield from source.tensors(dtype, without=taken)


def _check_quantize(quantize: Quantize, config: ModelConfig, ops: Packer[Any, Any, Any]) -> None:
    """Raises:
    UnsupportedCheckpoint: the backend, or the widths of the model, do not support the format."""
    if not ops.takes_blocks(quantize, _ANY_FORMATS_WIDTH):
        backend, dtype = ops.describe()["backend"], ops.describe()["dtype"]
        raise UnsupportedCheckpoint(
            f"quantize {quantize} needs the native kernels of the CPU, in bfloat16; here is {backend} in {dtype}"
        )
    widths = (config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size)
    for width in widths:
        if not ops.takes_blocks(quantize, width):
            raise UnsupportedCheckpoint(f"quantize {quantize} does not divide this model's matrices of {width} inputs")


class _Assembler(Generic[V, L, E]):
    """Collects tensors in any order, and packs a fused weight once all its parts are there."""

    def __init__(self, config: ModelConfig, ops: Packer[V, L, E], quantize: Quantize) -> None:
        self._config, self._ops = config, ops
        self._format = DENSE if quantize == "none" else quantize
        self._matrices: dict[str, StoredWeight] = {}
        self._vectors: dict[str, Array] = {}
        self._fused: dict[str, L] = {}
        self._embedding: E | None = None
        self._head: L | None = None
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

    def add(self, name: str, weight: Array | StoredWeight) -> None:
        if isinstance(weight, StoredWeight):
            self._add_matrix(name, weight)
        elif weight.ndim == 2:
            self._add_matrix(name, replace(StoredWeight.dense(weight), format=self._format_of(name)))
        else:
            self._vectors[name] = weight
        group = self._group_of.get(name)
        if group is None:
            return
        self._missing[group].discard(name)
        if not self._missing[group]:
            self._fused[group] = self._fuse(group)

    def _add_matrix(self, name: str, weight: StoredWeight) -> None:
        if name == EMBEDDING:  # packed at once, as the head is: nothing is as large
            self._embedding = self._ops.pack_embedding(weight)
        elif name == HEAD:
            self._head = self._ops.pack_parts([weight], None)
        else:
            self._matrices[name] = weight

    def _format_of(self, name: str) -> str:
        # In int4 these two alone cost SmolLM2 7 % of its perplexity, and everything else 0.1 %.
        return "int8" if self._format == "int4" and name in (EMBEDDING, HEAD) else self._format

    def _fuse(self, group: str) -> L:
        names = self._parts[group]
        parts = [self._matrices.pop(f"{name}.weight") for name in names]
        has_bias = f"{names[0]}.bias" in self._vectors
        bias = np.concatenate([self._vectors.pop(f"{name}.bias") for name in names]) if has_bias else None
        if group.endswith(".gate_up"):
            gate, up = parts
            return self._ops.pack_gate_up(gate, up, bias)
        return self._ops.pack_parts(parts, bias)

    def finish(self) -> ModelWeights[V, L, E]:
        for names in self._missing.values():
            for name in sorted(names):
                raise UnsupportedCheckpoint(f"tensor {name} is missing")
        if self._embedding is None:
            raise UnsupportedCheckpoint(f"tensor {EMBEDDING} is missing")
        head = self._ops.tied_head(self._embedding) if self._config.tie_embeddings else self._head
        if head is None:
            raise UnsupportedCheckpoint(f"tensor {HEAD} is missing")
        return ModelWeights(
            embedding=self._embedding,
            layers=tuple(self._layer(index) for index in range(self._config.num_layers)),
            final_norm=self._take(FINAL_NORM),
            head=head,
        )

    def _layer(self, index: int) -> LayerWeights[V, L]:
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

    def _head_norms(self, prefix: str) -> HeadNorms[V]:
        query, key = self._take(f"{prefix}.q_norm.weight"), self._take(f"{prefix}.k_norm.weight")
        return HeadNorms(query, key, self._config.rms_norm_eps)

    def _take(self, name: str) -> V:
        if name not in self._vectors:
            raise UnsupportedCheckpoint(f"tensor {name} is missing")
        return self._ops.vector(self._vectors.pop(name))
