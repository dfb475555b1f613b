"""The op table of a CUDA device: cuBLAS for products of many rows of plain numbers, this package's kernels for the
rest."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from kernels import gpu_formats
from kernels.adapter_sizes import LayerSizes
from kernels.arrays import Array
from kernels.device_adapters import DeviceAdapters
from kernels.device_states import DeviceStates
from kernels.exchange import tensor_of
from kernels.layout import BLOCK_TOKENS, LayerSize, MixedBlocks, block_numbers, int8_block_bytes, int8_layer_bytes
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
    MlpWeights,
    RopeRows,
    SamplingColumns,
)
from kernels.reference_ops import ReferenceEmbedding, ReferenceOps
from kernels.triton import (
    activation,
    attention,
    blocks,
    delta_launch,
    embedding,
    few_rows,
    latents,
    logprobs,
    mixture,
    norms,
    packing,
    rotary,
    sampling,
)
from kernels.triton.adapter_slots import TritonAdapters
from kernels.triton.by_head import HeadLinears
from kernels.triton.plan import TritonPlan, plan_from_metadata
from kernels.triton.uploads import WeightUploads
from kernels.weights import KVScales, StoredWeight

_UNSCALED = KVScales(key=1.0, value=1.0)


class TritonOps(ReferenceOps):
    """Ops on a GPU in one dtype, or on the CPU with Triton's interpreter.

    `kv_scales`: keep KV in fp8 e4m3, with these scales where a layer has none of its own. `int8_kv`: keep it in int8
    (`kernels.reference_int8`). `floats8`: whether the GPU computes in e4m3; weights in it are expanded otherwise.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        kv_scales: KVScales | None = None,
        *,
        int8_kv: bool = False,
        floats8: bool = True,
    ) -> None:
        assert not (int8_kv and kv_scales), "KV is in one of int8 and fp8"
        super().__init__(device, dtype)
        self._floats8 = floats8
        self._uploads = WeightUploads(device)
        self.kv_scales = kv_scales
        self.kv_dtype = torch.int8 if int8_kv else torch.float8_e4m3fn if kv_scales else dtype

    def describe(self) -> dict[str, str | int | float]:
        return {
            "backend": "triton",
            "device": torch.cuda.get_device_name(self.device) if self.on_gpu else "interpreter",
            "dtype": str(self.dtype).removeprefix("torch."),
            "kv dtype": str(self.kv_dtype).removeprefix("torch."),
        }

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return few_rows.PlainLinear(weight.to(self.device), None if bias is None else bias.to(self.device))

    @property
    def rotates_by_position(self) -> bool:
        return True

    def takes_blocks(self, format: str, in_features: int) -> bool:
        return gpu_formats.takes(format, in_features, floats8=self._floats8)

    def pack_parts(self, parts: Sequence[StoredWeight], bias: Array | None) -> Linear:
        own_bias = None if bias is None else tensor_of(bias).clone()
        return packing.pack(parts, own_bias, self._uploads, self.dtype, self.pack_linear)

    def pack_embedding(self, weight: StoredWeight) -> Embedding:
        # Rows are read one by one: they are plain numbers, and a tied head with them, whatever matrices are rounded to.
        if weight.rows.dtype == np.uint8:
            return ReferenceEmbedding(packing.floats_of(weight, self._uploads).to(self.dtype), self)
        return ReferenceEmbedding(self._uploads.joined([tensor_of(weight.rows)]), self)

    def embed(self, table: Tensor, token_ids: Tensor) -> Tensor:
        return embedding.embed(table, token_ids)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norms.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(x, residual, weight, eps)

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
        return norms.add_branch(branch, branch_norm, residual, next_norm, eps, scalar, into)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.silu_mul(gate_up)

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.gelu_mul(gate_up)

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        return activation.sigmoid_mul(x, gate)

    def gated_delta(
        self, mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, eps: float
    ) -> Tensor:
        return delta_launch.gated_delta(mixed, gates, weights, place, states, eps)

    def settle_delta(
        self, mixed: Tensor, gates: Tensor, weights: DeltaWeights, place: int, states: DeviceStates, settled: Tensor
    ) -> None:
        delta_launch.settle_delta(mixed, gates, weights, place, states, settled)

    def clamped_swiglu_mul(self, gate_up: Tensor) -> Tensor:
        return activation.clamped_swiglu_mul(gate_up)

    def stack_experts(self, experts: Sequence[MlpWeights]) -> Sequence[MlpWeights]:
        return mixture.StackedExperts(experts, self.dtype)

    def mixture(
        self,
        weights: ExpertWeights,
        x: Tensor,
        slot_mapping: Tensor,
        multiply: Callable[[Tensor], Tensor],
        expert_tokens: Tensor,
        routed: Tensor | None = None,
    ) -> Tensor:
        return mixture.mixture(weights, x, slot_mapping, multiply, expert_tokens, routed)

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        shape: tuple[int, ...] = (num_layers, num_blocks, BLOCK_TOKENS, 2, num_kv_heads, head_dim)
        if self.kv_dtype == torch.int8:
            shape = (num_layers, num_blocks, int8_block_bytes(num_kv_heads, head_dim))
        return torch.zeros(shape, dtype=self.kv_dtype, device=self.device)

    def allocate_mixed_kv(self, num_blocks: int, blocks: MixedBlocks) -> Tensor:
        shape = (1, num_blocks, blocks.starts(self.layer_size)[1])
        return torch.zeros(shape, dtype=self.kv_dtype, device=self.device)

    @property
    def layer_size(self) -> LayerSize:
        return int8_layer_bytes if self.kv_dtype == torch.int8 else block_numbers

    def allocate_adapters(self, layers: Sequence[LayerSizes], slots: int, max_rank: int) -> DeviceAdapters:
        return TritonAdapters(layers, slots, max_rank, self.dtype, self.device)

    def clear_blocks(self, kv: Tensor, block_ids: Tensor) -> None:
        blocks.clear_blocks(kv, block_ids)

    def copy_blocks(self, kv: Tensor, sources: Tensor, targets: Tensor) -> None:
        blocks.copy_blocks(kv, sources, targets)

    def rotate_and_store(
        self,
        qkv: Tensor,
        norms: HeadNorms | None,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
        scales: KVScales | None = None,
    ) -> Tensor:
        return rotary.rotate_and_store(qkv, norms, rope, kv_layer, slot_mapping, self._scales(scales))

    def rotate(self, query: Tensor, norms: HeadNorms | None, rope: RopeRows) -> Tensor:
        return rotary.rotate(query, norms, rope)

    def plan_attention(self, metadata: AttentionMetadata) -> AttentionPlan:
        return plan_from_metadata(metadata, self.device)

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
        assert isinstance(plan, TritonPlan)
        return attention.attend(query, kv_layer, plan, window, self._scales(scales) or _UNSCALED, cap, sinks, scale)

    def stack_heads(self, linears: Sequence[Linear]) -> Sequence[Linear]:
        return HeadLinears(linears)

    def latent_queries(
        self,
        weights: LatentWeights,
        query: Tensor,
        down: Tensor,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
    ) -> Tensor:
        return latents.latent_queries(weights, query, down, rope, kv_layer, slot_mapping)

    def attend_latents(
        self, query: Tensor, kv_layer: Tensor, plan: AttentionPlan, rotated: int, scale: float
    ) -> Tensor:
        assert isinstance(plan, TritonPlan)
        return latents.attend_latents(query, kv_layer, plan, rotated, scale)

    def latent_values(self, weights: LatentWeights, means: Tensor) -> Tensor:
        return latents.latent_values(weights, means)

    def _scales(self, of_layer: KVScales | None) -> KVScales | None:
        """Scales of a layer's KV; None if it is not in fp8."""
        return None if self.kv_scales is None else of_layer or self.kv_scales

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Tensor:
        return sampling.sample(logits, columns)

    def token_logprobs(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = torch.arange(len(tokens), device=logits.device)
        measured = logprobs.token_logprobs(logits, rows, tokens)
        return measured.normalisers, measured.logprobs, measured.ranks
