"""Builds a model from a checkpoint's tensors: fuses projections that are computed together and packs them for the
backend."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from engine.config import Quantize
from engine.models.collective import Collective
from engine.models.config import ModelConfig, UnsupportedCheckpoint
from engine.models.expansion import kept_matrices
from engine.models.host_model import HostModel
from engine.models.kv_groups import KVGroups, one_group
from engine.models.latent import LATENT_EPS, LatentConfig, split_by_head
from engine.models.layout import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    LAYER_EMBEDDING,
    LAYER_INPUT_NORM,
    LAYER_PROJECTION,
    expected_tensors,
    fused_modules,
    is_by_head,
    is_routing,
    layer_tensors,
)
from engine.models.native_model import NativeModel
from engine.models.rope import layer_ropes
from engine.models.sources import BlockSource, KVScaleSource, WeightSource
from kernels.arrays import FLOAT32, Array, Dtype
from kernels.cpu.native_ops import NativeOps
from kernels.weights import (
    DENSE,
    DeltaVectors,
    DeltaWeights,
    E,
    ExpertNorms,
    ExpertStacker,
    ExpertWeights,
    HeadNorms,
    HeadStacker,
    KVScales,
    L,
    LatentWeights,
    LayerInput,
    LayerInputs,
    LayerWeights,
    MlpWeights,
    ModelWeights,
    Packer,
    StoredWeight,
    V,
)

if TYPE_CHECKING:
    from engine.models.transformer import Transformer
    from kernels.ops import Ops

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes in total)."""

_TABLES = (EMBEDDING, HEAD, LAYER_EMBEDDING)

_ANY_FORMATS_WIDTH = 4096
"""A matrix width that every quantised format supports."""


def load_model(
    source: WeightSource,
    ops: "NativeOps | Ops",
    max_positions: int,
    progress: Progress | None = None,
    quantize: Quantize = "none",
    groups: KVGroups | None = None,
    collective: Collective | None = None,
) -> "NativeModel | Transformer":
    """Read the weights in the dtype of `ops` and build a model for positions below `max_positions`.

    Matrices in a block format that the backend computes with are kept in it; others are converted as `quantize` says.
    `groups`: of the layers' KV; None for one. `collective`: of a rank of which the source is the part of a model; torch
    computes it.

    Raises:
        UnsupportedCheckpoint: a tensor is missing, the model's matrices cannot be quantised on this machine, or the
            GPU's kernels do not compute the model.
    """
    config = source.config
    rope = layer_ropes(config, max_positions)
    groups = groups or one_group(config.kv_layers)
    if isinstance(ops, NativeOps):
        assert collective is None, "the native library computes whole models"
        return NativeModel(config, _packed(source, ops, ops.dtype, progress, quantize), rope, ops, groups)
    if ops.on_gpu:
        _check_gpu(config)
        if config.latent is not None:
            _check_latent_kv(ops.describe())
    # Only here: where the native library computes, nothing needs torch.
    import torch

    from engine.models.transformer import Transformer
    from kernels.exchange import numpy_dtype

    with torch.inference_mode():
        weights = _packed(source, ops, numpy_dtype(ops.dtype), progress, quantize)
        return Transformer(config, weights, rope, ops, groups, collective)


def _check_gpu(config: ModelConfig) -> None:
    """Raises:
    UnsupportedCheckpoint: the model needs an op that the GPU's kernels do not have."""
    if config.latent is not None and config.latent.stored.dim % 16:
        sizes = f"a rank of {config.latent.rank} and {config.latent.rotated} rotated dimensions"
        raise UnsupportedCheckpoint(f"latent attention: {sizes}: together not a multiple of 16; use device cpu")
    for heads in config.kv_heads:
        if config.latent is None and heads.dim % 16:
            raise UnsupportedCheckpoint(f"head_dim: {heads.dim} is not a multiple of 16; use device cpu")


def _check_latent_kv(backend: Mapping[str, str | int | float]) -> None:
    """Raises:
    UnsupportedCheckpoint: KV is in another dtype than the model."""
    dtype, kv_dtype = backend["dtype"], backend["kv dtype"]
    if kv_dtype != dtype:
        raise UnsupportedCheckpoint(f"kv_dtype: a GPU keeps latents in {dtype}, not in {kv_dtype}; use kv_dtype auto")


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
    scales = source.kv_scales if isinstance(source, KVScaleSource) else {}
    assembler = _Assembler(source.config, ops, quantize, scales)
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
        needed = "a GPU" if quantize == "fp8" else "a GPU, or the native kernels of the CPU in bfloat16"
        raise UnsupportedCheckpoint(f"quantize {quantize} needs {needed}; here is {backend} in {dtype}")
    widths = {
        shape[1]
        for name, shape in expected_tensors(config)
        if len(shape) == 2 and not (is_routing(name) or is_by_head(name))
    }
    for width in sorted(widths):
        if not ops.takes_blocks(quantize, width):
            raise UnsupportedCheckpoint(f"quantize {quantize} does not divide this model's matrices of {width} inputs")


class _Assembler(Generic[V, L, E]):
    """Collects tensors in any order, and packs a fused weight once all its parts are there."""

    def __init__(
        self, config: ModelConfig, ops: Packer[V, L, E], quantize: Quantize, kv_scales: Mapping[int, KVScales]
    ) -> None:
        self._config, self._ops, self._kv_scales = config, ops, kv_scales
        self._format = DENSE if quantize == "none" else quantize
        self._matrices: dict[str, StoredWeight] = {}
        self._vectors: dict[str, Array] = {}
        self._fused: dict[str, L] = {}
        self._of_heads: dict[str, tuple[Sequence[L], Sequence[L]]] = {}
        self._embedding: E | None = None
        self._layer_table: E | None = None
        self._head: L | None = None
        self._group_of: dict[str, str] = {}
        self._missing: dict[str, set[str]] = {}
        self._parts: dict[str, tuple[str, ...]] = {}
        for layer in range(config.num_layers):
            names = {name for name, _ in layer_tensors(config, layer)}
            for group, modules in fused_modules(config, layer).items():
                key = f"model.layers.{layer}.{group}"
                self._parts[key] = tuple(f"model.layers.{layer}.{module}" for module in modules)
                tensors = {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")} & names
                self._missing[key] = {f"model.layers.{layer}.{name}" for name in tensors}
                self._group_of.update(dict.fromkeys(self._missing[key], key))

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
        elif name == LAYER_EMBEDDING:
            self._layer_table = self._ops.pack_embedding(weight)
        elif is_by_head(name):
            self._of_heads[name] = self._by_head(weight.rows)
        else:
            self._matrices[name] = weight

    def _format_of(self, name: str) -> str:
        if is_routing(name) or is_by_head(name):
            return DENSE  # a rounded router would choose other experts
        # In int4 these two alone cost SmolLM2 7 % of its perplexity, and everything else 0.1 %. In fp8 the inputs of a
        # head would be rounded, too.
        return "int8" if self._format in ("int4", "fp8") and name in _TABLES else self._format

    def _fuse(self, group: str) -> L:
        names = self._parts[group]
        parts = [self._matrices.pop(f"{name}.weight") for name in names]
        has_bias = f"{names[0]}.bias" in self._vectors
        bias = np.concatenate([self._vectors.pop(f"{name}.bias") for name in names]) if has_bias else None
        if group.endswith(".gate_up"):
            gate, up = parts
            return self._ops.pack_gate_up(gate, up, bias)
        return self._ops.pack_parts(parts, bias)

    def _by_head(self, rows: Array) -> tuple[Sequence[L], Sequence[L]]:
        config = self._config.latent
        assert config is not None, "a projection of latents in a model without"
        of_queries, of_values = (
            self._heads([self._ops.pack_parts([StoredWeight.dense(part)], None) for part in parts])
            for parts in split_by_head(rows, self._config.num_heads, config.value_dim)
        )
        return of_queries, of_values

    def _heads(self, linears: Sequence[L]) -> Sequence[L]:
        return self._ops.stack_heads(linears) if isinstance(self._ops, HeadStacker) else linears

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
            layer_inputs=self._layer_inputs() if self._config.layer_input_size else None,
        )

    def _layer_inputs(self) -> LayerInputs[V, L, E]:
        if self._layer_table is None or LAYER_PROJECTION not in self._matrices:
            missing = LAYER_EMBEDDING if self._layer_table is None else LAYER_PROJECTION
            raise UnsupportedCheckpoint(f"tensor {missing} is missing")
        projection = self._ops.pack_parts([self._matrices.pop(LAYER_PROJECTION)], None)
        return LayerInputs(self._layer_table, projection, self._take(LAYER_INPUT_NORM))

    def _layer(self, index: int) -> LayerWeights[V, L]:
        prefix, config = f"model.layers.{index}", self._config
        pre, branch, linear = config.pre_norm, config.branch_norm, config.is_linear(index)
        return LayerWeights(
            attention_norm=self._take(f"{prefix}.input_layernorm.weight") if pre else None,
            qkv=self._fused[f"{prefix}.qkv"] if config.latent is None else self._latent(prefix, config.latent),
            head_norms=self._head_norms(prefix, index) if config.qk_norm and not linear else None,
            output=self._fused[f"{prefix}.output"],
            mlp_norm=self._take(f"{prefix}.post_attention_layernorm.weight") if pre else None,
            mlp=self._experts(prefix) if config.is_sparse(index) else self._mlp(f"{prefix}.mlp"),
            attention_output_norm=self._take(f"{prefix}.attention_output_norm.weight") if branch else None,
            mlp_output_norm=self._take(f"{prefix}.mlp_output_norm.weight") if branch else None,
            sinks=self._wide(f"{prefix}.self_attn.sinks") if config.attention_sinks else None,
            attention_gate=self._fused[f"{prefix}.attention_gate"] if config.attention_gate and not linear else None,
            delta=self._delta(prefix) if linear else None,
            expert_norms=self._expert_norms(f"{prefix}.mlp") if config.is_sparse(index) else None,
            scalar=float(self._pop(f"{prefix}.layer_scalar")[0]) if config.layer_scalars else 1.0,
            layer_input=self._layer_input(prefix) if config.layer_input_size else None,
            kv_scales=self._kv_scales.get(config.kv_sources[index] if config.kv_sources else index),
        )

    def _layer_input(self, prefix: str) -> LayerInput[V, L]:
        gate, projection = self._fused[f"{prefix}.input_gate"], self._fused[f"{prefix}.input_projection"]
        return LayerInput(gate, projection, self._take(f"{prefix}.post_per_layer_input_norm.weight"))

    def _expert_norms(self, prefix: str) -> ExpertNorms[V] | None:
        experts = self._config.experts
        if experts is None or not experts.own_norms:
            return None
        scale = self._pop(f"{prefix}.gate.scale").astype(FLOAT32) * np.float32(experts.router_scale)
        names = ("experts_norm", "experts_output_norm", "shared_output_norm")
        return ExpertNorms(self._ops.vector(scale), *(self._take(f"{prefix}.{name}.weight") for name in names))

    def _latent(self, prefix: str, config: LatentConfig) -> LatentWeights[V, L]:
        has_rank, name = config.query_rank is not None, f"{prefix}.self_attn.kv_b_proj.weight"
        if name not in self._of_heads:
            raise UnsupportedCheckpoint(f"tensor {name} is missing")
        of_queries, of_values = self._of_heads[name]
        return LatentWeights(
            query_down=self._fused[f"{prefix}.query_down"] if has_rank else None,
            query_norm=self._take(f"{prefix}.self_attn.q_a_layernorm.weight") if has_rank else None,
            query_up=self._fused[f"{prefix}.query_up"],
            down=self._fused[f"{prefix}.down"],
            norm=self._take(f"{prefix}.self_attn.kv_a_layernorm.weight"),
            of_queries=of_queries,
            of_values=of_values,
            rotated=config.rotated,
            value_dim=config.value_dim,
            eps=LATENT_EPS,
        )

    def _delta(self, prefix: str) -> DeltaWeights[V, L]:
        linear = self._config.linear
        assert linear is not None, "a linear layer without its sizes"
        taps = self._pop(f"{prefix}.linear_attn.conv1d.weight")[:, 0].T
        rate = -np.exp(self._pop(f"{prefix}.linear_attn.A_log").astype(FLOAT32))
        bias, norm = (self._pop(f"{prefix}.linear_attn.{name}") for name in ("dt_bias", "norm.weight"))
        vectors = [self._ops.wide_vector(np.ascontiguousarray(numbers)) for numbers in (taps, rate, bias, norm)]
        return DeltaWeights(linear.shape, self._fused[f"{prefix}.gates"], DeltaVectors(*vectors))

    def _mlp(self, prefix: str) -> MlpWeights[L]:
        return MlpWeights(self._fused.pop(f"{prefix}.gate_up"), self._fused.pop(f"{prefix}.down"))

    def _experts(self, prefix: str) -> ExpertWeights[V, L]:
        config = self._config.experts
        assert config is not None, "a sparse layer without experts"
        has_shared = config.shared_size > 0
        experts: Sequence[MlpWeights[L]] = [
            self._mlp(f"{prefix}.mlp.experts.{expert}") for expert in range(config.count)
        ]
        if isinstance(self._ops, ExpertStacker):
            experts = self._ops.stack_experts(experts)
        return ExpertWeights(
            router=self._fused[f"{prefix}.mlp.router"],
            experts=experts,
            per_token=config.per_token,
            renormalise=config.renormalise,
            shared=self._mlp(f"{prefix}.mlp.shared_expert") if has_shared else None,
            shared_gate=self._fused[f"{prefix}.mlp.shared_gate"] if has_shared and config.shared_gate else None,
            rule=config.rule,
            choice_bias=self._wide(f"{prefix}.mlp.gate.e_score_correction_bias") if config.choice_bias else None,
            share_scale=self._wide(f"{prefix}.mlp.gate.per_expert_scale") if config.share_scale else None,
        )

    def _head_norms(self, prefix: str, index: int) -> HeadNorms[V]:
        config = self._config
        query = self._take(f"{prefix}.self_attn.q_norm.weight")
        key = self._take(f"{prefix}.self_attn.k_norm.weight") if config.has_kv(index) else query
        value = self._ops.vector(np.ones(config.heads_of(index).dim, FLOAT32)) if config.value_norm else None
        return HeadNorms(query, key, config.rms_norm_eps, config.qk_norm_whole, value)

    def _wide(self, name: str) -> V:
        """A vector that stays float32."""
        return self._ops.wide_vector(self._pop(name))

    def _pop(self, name: str) -> Array:
        if name not in self._vectors:
            raise UnsupportedCheckpoint(f"tensor {name} is missing")
        return self._vectors.pop(name)

    def _take(self, name: str) -> V:
        numbers, offset = self._pop(name), self._config.norm_offset
        return self._ops.vector(numbers if offset == 0 else numbers.astype(FLOAT32) + np.float32(offset))
