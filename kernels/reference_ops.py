"""A backend of the reference: each op by its definition, weights as plain numbers. `kernels.cpu.ops` and
`kernels.triton.ops` replace what they have kernels for.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from kernels.adapter_sizes import LayerSizes
from kernels.arrays import Array
from kernels.device_adapters import DeviceAdapters
from kernels.device_states import DeviceStates
from kernels.exchange import tensor_of
from kernels.layout import BLOCK_TOKENS, LayerSize, MixedBlocks, block_numbers
from kernels.ops import (
    AttentionMetadata,
    AttentionPlan,
    CheckedRows,
    DeltaWeights,
    Embedding,
    ExpertWeights,
    HeadNorms,
    LatentWeights,
    Linear,
    LogitEdits,
    RopeRows,
    SamplingColumns,
)
from kernels.reference import (
    add_rms_norm,
    attend,
    clamped_swiglu_mul,
    clear_blocks,
    copy_blocks,
    edit_logits,
    finite_rows,
    gelu_mul,
    linear,
    mask_logits,
    rms_norm,
    rotate,
    rotate_and_store,
    route,
    sample,
    sample_among,
    sigmoid_mul,
    silu_mul,
    token_logprobs,
)
from kernels.reference_adapters import ReferenceAdapters
from kernels.reference_delta import advance_rows
from kernels.reference_experts import mixture, without_padding
from kernels.weights import DENSE, KVScales, StoredWeight


class ReferenceLinear:
    """An unpacked weight."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def wide(self, x: Tensor) -> Tensor:
        return self(x).float()

    @property
    def logits_dtype(self) -> torch.dtype:
        return self.weight.dtype

    def logits(self, x: Tensor, into: Tensor | None = None) -> Tensor:
        if into is None:
            return self(x)
        if self.bias is None:
            return torch.mm(x, self.weight.t(), out=into)
        return torch.addmm(self.bias, x, self.weight.t(), out=into)


class ReferenceEmbedding:
    """An unpacked table, and a head packed from it by its op table."""

    def __init__(self, table: Tensor, ops: "ReferenceOps") -> None:
        self._table, self._ops = table, ops

    def __call__(self, token_ids: Tensor) -> Tensor:
        return self._ops.embed(self._table, token_ids)

    def head(self) -> Linear:
        """The product with the table."""
        return self._ops.pack_linear(self._table, None)


class ReferencePlan:
    """An empty plan: the reference reads the metadata itself."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata

    @property
    def positions(self) -> Tensor:
        return self.metadata.positions

    @property
    def slot_mapping(self) -> Tensor:
        return self.metadata.slot_mapping


class ReferenceOps:
    """The op table of this file, for any device. Backends override the ops that they implement."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def rotates_by_position(self) -> bool:
        return False

    def describe(self) -> dict[str, str | int | float]:
        return {"backend": "reference", "dtype": str(self.dtype).removeprefix("torch.")}

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return ReferenceLinear(weight.to(self.device), None if bias is None else bias.to(self.device))

    def takes_blocks(self, format: str, in_features: int) -> bool:
        return False

    def vector(self, numbers: Array) -> Tensor:
        return tensor_of(numbers).to(self.device, self.dtype, copy=True)

    def wide_vector(self, numbers: Array) -> Tensor:
        return tensor_of(numbers).to(self.device, torch.float32, copy=True)

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Array | None) -> Linear:
        assert all(part.format == DENSE for part in parts), f"not all of {[part.format for part in parts]} are taken"
        rows = torch.cat([tensor_of(part.rows) for part in parts])
        return self.pack_linear(rows, None if bias is None else tensor_of(bias).clone())

    def pack_gate_up(self, gate: StoredWeight, up: StoredWeight, bias: Array | None) -> Linear:
        return self.pack_parts((gate, up), bias)

    def pack_embedding(self, weight: StoredWeight) -> Embedding:
        assert weight.format == DENSE, f"{weight.format} is not taken"
        # A copy of its own: a table that is read by row must not keep a whole memory-mapped file alive.
        return ReferenceEmbedding(tensor_of(weight.rows).to(self.device, copy=True), self)

    def tied_head(self, embedding: Embedding) -> Linear:
        assert isinstance(embedding, ReferenceEmbedding), "an embedding of another backend"
        return embedding.head()

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor:
        return functional.embedding(token_ids, table)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def add_branch(
        self,
        branch: Tensor,
        branch_norm: Tensor | None,
        residual: Tensor,
        next_norm: Tensor | None,
        eps: float,
        scalar: float = 1.0,
        into: CheckedRows | None = None,
    ) -> tuple[Tensor, Tensor]:
        if into is not None:
            normed, total = self.add_branch(branch, branch_norm, residual, next_norm, eps, scalar)
            return into.keep(normed), total
        if branch_norm is not None:
            branch = self.rms_norm(branch, branch_norm, eps)
        if next_norm is not None and scalar == 1:
            return self.add_rms_norm(branch, residual, next_norm, eps)
        total = residual + branch
        total = total if scalar == 1 else total * scalar
        return total if next_norm is None else self.rms_norm(total, next_norm, eps), total

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return gelu_mul(gate_up)

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        return sigmoid_mul(x, gate)

    def gated_delta(
        self, mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, eps: float
    ) -> Tensor:
        return advance_rows(mixed, gates, place, states, weights.shape, weights.vectors, eps)

    def settle_delta(
        self, mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, settled: Tensor
    ) -> None:
        advance_rows(mixed, gates, place, states, weights.shape, weights.vectors, 1.0, settled)

    def clamped_swiglu_mul(self, gate_up: Tensor) -> Tensor:
        return clamped_swiglu_mul(gate_up)

    def mixture(
        self,
        weights: ExpertWeights,
        x: Tensor,
        slot_mapping: Tensor,
        multiply: Callable[[Tensor], Tensor],
        expert_tokens: Tensor,
        routed: Tensor | None = None,
    ) -> Tensor:
        logits = weights.router.wide(x if routed is None else routed)
        chosen, shares = route(
            logits, weights.per_token, weights.renormalise, weights.rule, weights.choice_bias, weights.share_scale
        )
        return mixture(without_padding(chosen, slot_mapping), shares, weights.experts, x, multiply, expert_tokens)

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        shape = (num_layers, num_blocks, BLOCK_TOKENS, 2, num_kv_heads, head_dim)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)

    def allocate_mixed_kv(self, num_blocks: int, blocks: MixedBlocks) -> Tensor:
        return torch.zeros((1, num_blocks, blocks.starts(self.layer_size)[1]), dtype=self.dtype, device=self.device)

    @property
    def layer_size(self) -> LayerSize:
        return block_numbers

    def allocate_adapters(self, layers: Sequence[LayerSizes], slots: int, max_rank: int) -> DeviceAdapters:
        return ReferenceAdapters(layers, slots, max_rank)

    def clear_blocks(self, kv: Tensor, block_ids: Tensor) -> None:
        clear_blocks(kv, block_ids)

    def copy_blocks(self, kv: Tensor, sources: Tensor, targets: Tensor) -> None:
        copy_blocks(kv, sources, targets)

    def rotate_and_store(
        self,
        qkv: Tensor,
        norms: HeadNorms | None,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
        scales: KVScales | None = None,
    ) -> Tensor:
        return rotate_and_store(qkv, norms, rope, kv_layer, slot_mapping)

    def rotate(self, query: Tensor, norms: HeadNorms | None, rope: RopeRows) -> Tensor:
        return rotate(query, norms, rope)

    def plan_attention(self, metadata: AttentionMetadata) -> AttentionPlan:
        return ReferencePlan(metadata)

    def attend(
        self,
        query: Tensor,
        kv_layer: Tensor,
        plan: AttentionPlan,
        window: int | None,
        cap: float | None = None,
        sinks: Tensor | None = None,
        scales: KVScales | None = None,
        scale: float | None = None,
    ) -> Tensor:
        assert isinstance(plan, ReferencePlan)
        return attend(query, kv_layer, plan.metadata, window, cap, sinks, scale=scale)

    def latent_queries(
        self,
        weights: LatentWeights,
        query: Tensor,
        down: Tensor,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        rotated, parts = weights.rotated, []
        for absorb, of_head in zip(weights.of_queries, query.unbind(1), strict=True):
            parts += [of_head[:, :rotated], absorb(of_head[:, rotated:].contiguous())]
        latent = self.rms_norm(down[:, :-rotated].contiguous(), weights.norm, weights.eps)
        heads = torch.cat((*parts, down[:, -rotated:], latent), dim=1).view(len(query), -1, kv_layer.shape[-1])
        return self.rotate_and_store(heads, None, rope, kv_layer, slot_mapping)

    def attend_latents(
        self, query: Tensor, kv_layer: Tensor, plan: AttentionPlan, rotated: int, scale: float
    ) -> Tensor:
        return self.attend(query, kv_layer, plan, None, scale=scale)[:, :, rotated:]

    def latent_values(self, weights: LatentWeights, means: Tensor) -> Tensor:
        of_heads = zip(weights.of_values, means.unbind(1), strict=True)
        return torch.cat([value(x) for value, x in of_heads], dim=1)

    def edit_logits(self, logits: Tensor, edits: LogitEdits) -> None:
        edit_logits(logits, edits)

    def mask_logits(self, logits: Tensor, bitmask: Tensor) -> None:
        mask_logits(logits, bitmask)

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Tensor:
        return sample(logits, columns)

    def sample_among(self, logits: Tensor, token_ids: Tensor, columns: SamplingColumns) -> Tensor:
        return sample_among(logits, token_ids, columns)

    def finite_rows(self, logits: Tensor) -> Tensor:
        return finite_rows(logits)

    def token_logprobs(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return token_logprobs(logits, tokens)
