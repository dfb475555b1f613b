"""The model computed by the native library: a step through all layers is one call. Does not import torch."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from engine.models.config import ModelConfig
from engine.models.host_model import HostModel, allocate_states
from engine.models.kv_groups import KVGroups, mixed_blocks
from engine.models.rope import RopeTable
from kernels.adapters import AdapterWeights
from kernels.arrays import Array, Floats, Ints
from kernels.cpu.native.adapter_packing import ModelLayout, model_layout
from kernels.cpu.native.adapters import AdapterTable, NativeAdapter
from kernels.cpu.native.forward import NativeWeights
from kernels.cpu.native.staged import StagedForward
from kernels.cpu.native_ops import NativeOps
from kernels.host import StepRows
from kernels.layout import HeadShape
from kernels.weights import ModelShape


class NativeModel:
    """A `HostModel` of the native library."""

    reads_past_context = False

    def __init__(
        self, config: ModelConfig, weights: NativeWeights, ropes: Sequence[RopeTable], ops: NativeOps, groups: KVGroups
    ) -> None:
        self.config = config
        self.ops = ops
        self._weights = weights
        self._groups = groups
        self._shape = ModelShape(
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            norm_eps=config.rms_norm_eps,
            windows=config.windows,
            cos=ropes[0].cos,
            sin=ropes[0].sin,
            rotary=() if all(rope is ropes[0] for rope in ropes) else tuple((rope.cos, rope.sin) for rope in ropes),
            attention_scale=config.score_scale,
            attention_softcap=config.attention_softcap,
            embedding_scale=config.embedding_scale,
            residual_scale=config.residual_scale,
            activation=config.activation,
            kv_places=groups.places if len(groups.windows) > 1 else (),
            layer_heads=_layer_heads(config),
            blocks=mixed_blocks(config, groups),
            kv_sources=config.kv_sources,
        )
        self._forward = ops.forward_pass(self._shape, weights)
        self._adapters: AdapterTable | None = None

    @property
    def expert_tokens(self) -> Ints:
        return self._forward.expert_tokens

    def allocate_kv(self, num_blocks: int) -> Array:
        config, blocks = self.config, self._shape.blocks
        if blocks is not None:
            return self.ops.allocate_mixed_kv(num_blocks, blocks)
        return self.ops.allocate_kv(self._groups.layers, num_blocks, config.num_kv_heads, config.head_dim)

    def allocate_states(self, num_slots: int) -> Floats:
        return allocate_states(self.config, self.ops, num_slots)

    def embed(self, token_ids: Ints) -> Array:
        return self._weights.embedding(token_ids)

    def use_table_of(self, other: HostModel) -> None:
        assert isinstance(other, NativeModel), "the other model's table is packed for another backend"
        theirs = other._weights
        head = theirs.head if self.config.tie_embeddings else self._weights.head
        self._weights = replace(self._weights, embedding=theirs.embedding, head=head)
        self._forward = self.ops.forward_pass(self._shape, self._weights)
        self._forward.adapters = self._adapters

    def allocate_adapters(self, slots: int) -> None:
        assert self._adapters is None, "the model has slots for adapters"
        self._adapters = self._forward.adapters = AdapterTable(slots)

    @property
    def adapter_layout(self) -> ModelLayout:
        return model_layout(self._weights.layers)

    def pack_adapter(self, weights: AdapterWeights) -> NativeAdapter:
        return NativeAdapter.pack(weights, self.adapter_layout)

    def put_adapter(self, slot: int, packed: NativeAdapter | None) -> None:
        assert self._adapters is not None, "the model has no slots for adapters"
        self._adapters.put(slot, packed)

    def forward(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        return self._forward(token_ids, rows, kv, wanted)

    def settle_drafts(self, rows: StepRows, accepted: Ints) -> None:
        assert isinstance(self._forward, StagedForward), "a model without states"
        self._forward.settle_drafts(rows, accepted)

    def logits(self, hidden: Array) -> Floats:
        logits, config = self._weights.head.wide(hidden), self.config
        if config.logit_divisor != 1:
            logits = logits / np.float32(config.logit_divisor)
        if config.logit_softcap is not None:
            cap = np.float32(config.logit_softcap)
            logits = np.tanh(logits / cap) * cap
        return logits


def _layer_heads(config: ModelConfig) -> tuple[HeadShape, ...]:
    if config.latent is None:
        return config.layer_heads
    return tuple(config.heads_of(layer) for layer in range(config.num_layers))
