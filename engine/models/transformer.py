"""The model in torch: a dense decoder-only transformer of the Llama architecture over a paged KV cache.

Used on a GPU, and on CPUs without kernels in the native library. Differences between families (biases, QK norm,
windows, rope) are in the config and the weights, not in branches. A step is token ids and an `AttentionPlan`; requests
are not known here.
"""

from dataclasses import replace

import torch
from torch import Tensor

from engine.models.config import ModelConfig
from engine.models.rope import RopeTable
from kernels.exchange import tensor_of
from kernels.ops import AttentionPlan, LayerWeights, ModelWeights, Ops, RopeRows


class RopeFactors:
    """A rope table on the model's device: in float32 on a CPU, else in the compute dtype."""

    def __init__(self, table: RopeTable, dtype: torch.dtype, device: torch.device) -> None:
        kept = torch.float32 if device.type == "cpu" else dtype
        self._cos, self._sin = (tensor_of(factors).to(device, kept) for factors in (table.cos, table.sin))
        self._dtype = dtype

    def rows(self, positions: Tensor) -> RopeRows:
        """Factors of tokens at `positions` int64 [T], gathered once a step for all layers."""
        cos, sin = (table[positions][:, None].to(self._dtype) for table in (self._cos, self._sin))
        return RopeRows(cos, sin)


class Transformer:
    """A loaded model on one device."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, rope: RopeTable, ops: Ops) -> None:
        self.config = config
        self.ops = ops
        self._weights = weights
        self._rope = RopeFactors(rope, ops.dtype, ops.device)

    def allocate_kv(self, num_blocks: int) -> Tensor:
        """KV memory [layers, blocks, ...]: see `kernels.ops.Ops.allocate_kv`."""
        config = self.config
        return self.ops.allocate_kv(config.num_layers, num_blocks, config.num_kv_heads, config.head_dim)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Embedding rows [T, H] of tokens int64 [T], in the compute dtype."""
        return self._weights.embedding(token_ids)

    def use_table_of(self, other: "Transformer") -> None:
        """Replace the embedding table by that of another model with the same rows, and a tied head by the other's; both
        models tie it or neither does. Frees the memory of the replaced table."""
        theirs = other._weights
        head = theirs.head if self.config.tie_embeddings else self._weights.head
        self._weights = replace(self._weights, embedding=theirs.embedding, head=head)

    def forward(self, token_ids: Tensor, plan: AttentionPlan, kv: Tensor) -> Tensor:
        """Hidden states [T, H] of a step's tokens, normed for the head. Writes their KV into `kv`, where slots past a
        row's context, in its last block, must hold finite numbers.

        `plan`: made by `ops.plan_attention` from the step's metadata.
        """
        ops, eps = self.ops, self.config.rms_norm_eps
        rope = self._rope.rows(plan.positions)
        residual = self._weights.embedding(token_ids)
        layers = self._weights.layers
        normed = ops.rms_norm(residual, layers[0].attention_norm, eps)
        for index, layer in enumerate(layers):
            attended = self._attention(layer, normed, rope, kv[index], plan, self.config.windows[index])
            normed, residual = ops.add_rms_norm(attended, residual, layer.mlp_norm, eps)
            expanded = layer.down(ops.silu_mul(layer.gate_up(normed)))
            next_norm = layers[index + 1].attention_norm if index + 1 < len(layers) else self._weights.final_norm
            normed, residual = ops.add_rms_norm(expanded, residual, next_norm, eps)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [T, V] from hidden states [T, H]."""
        return self._weights.head.wide(hidden)

    def _attention(
        self,
        layer: LayerWeights,
        normed: Tensor,
        rope: RopeRows,
        kv_layer: Tensor,
        plan: AttentionPlan,
        window: int | None,
    ) -> Tensor:
        config, ops = self.config, self.ops
        qkv = layer.qkv(normed).view(-1, config.num_heads + 2 * config.num_kv_heads, config.head_dim)
        query = ops.rotate_and_store(qkv, layer.head_norms, rope, kv_layer, plan.slot_mapping)
        return layer.output(ops.attend(query, kv_layer, plan, window).flatten(1))
