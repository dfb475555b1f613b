"""Torch's op table on a CPU: the reference, with faster CPU implementations of some ops."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu import attention, native, sampling
from kernels.cpu.linear import PackedLinear, PlainLinear, can_pack
from kernels.cpu.memory import keep_freed_memory, lazy_zeros
from kernels.cpu.probe import CpuProfile
from kernels.exchange import numpy_dtype, tensor_of
from kernels.layout import BLOCK_TOKENS, MixedBlocks, block_numbers
from kernels.ops import AttentionMetadata, AttentionPlan, HeadNorms, Linear, RopeRows, SamplingColumns
from kernels.reference import apply_rope, attend, write_kv
from kernels.reference_ops import ReferenceOps
from kernels.weights import KVScales


class CpuOps(ReferenceOps):
    """Torch's ops on the CPU as configured by the probe. Used where the native library does not compute."""

    def __init__(self, profile: CpuProfile) -> None:
        super().__init__(torch.device("cpu"), profile.dtype)
        self._profile = profile
        keep_freed_memory()

    def describe(self) -> dict[str, str | int | float]:
        dtype, level = str(self.dtype).removeprefix("torch."), native.level()
        return {
            "backend": "cpu",
            "dtype": dtype,
            "kv dtype": dtype,
            "threads": self._profile.threads,
            "products": self._profile.products,
            "min_rows": self._profile.min_rows,
            "level": "none" if level is None else level.name.lower(),
            **{f"{name} us": us for name, us in self._profile.probe_us.items()},
        }

    def pack_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if self._profile.products == "onednn" and can_pack(weight.dtype) and len(weight):
            return PackedLinear(weight, bias, min_rows=self._profile.min_rows)
        return PlainLinear(weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = norm.mul_(norm).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
        normed: Tensor = (wide * scale).to(x.dtype) * weight
        return normed

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        residual.add_(x)
        return self.rms_norm(residual, weight, eps), residual

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def allocate_kv(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> Tensor:
        shape = (num_layers, num_blocks, BLOCK_TOKENS, 2, num_kv_heads, head_dim)
        return tensor_of(lazy_zeros(shape, numpy_dtype(self.dtype)))

    def allocate_mixed_kv(self, num_blocks: int, blocks: MixedBlocks) -> Tensor:
        return tensor_of(lazy_zeros((1, num_blocks, blocks.starts(block_numbers)[1]), numpy_dtype(self.dtype)))

    def rotate_and_store(
        self,
        qkv: Tensor,
        norms: HeadNorms | None,
        rope: RopeRows,
        kv_layer: Tensor,
        slot_mapping: Tensor,
        scales: KVScales | None = None,
    ) -> Tensor:
        kinds, kv_heads = kv_layer.shape[2:4]
        queries = qkv.shape[1] - kinds * kv_heads
        heads = qkv[:, : queries + kv_heads]
        if norms is not None:
            heads[:, :queries] = self.rms_norm(heads[:, :queries], norms.query, norms.eps)
            heads[:, queries:] = self.rms_norm(heads[:, queries:], norms.key, norms.eps)
        rotated = _rotate(heads, rope)
        keys_values = qkv[:, queries:].view(-1, kinds, kv_heads, qkv.shape[2])
        keys_values[:, 0] = rotated[:, queries:]
        if norms is not None and norms.value is not None:
            keys_values[:, 1] = self.rms_norm(keys_values[:, 1], norms.value, norms.eps)
        if kv_layer.is_contiguous():
            kv_layer.flatten(0, 1).index_copy_(0, slot_mapping, keys_values)
        else:
            write_kv(kv_layer, keys_values, slot_mapping)
        return rotated[:, :queries]

    def rotate(self, query: Tensor, norms: HeadNorms | None, rope: RopeRows) -> Tensor:
        return _rotate(query if norms is None else self.rms_norm(query, norms.query, norms.eps), rope)

    def plan_attention(self, metadata: AttentionMetadata) -> AttentionPlan:
        return attention.CpuAttentionPlan(metadata, self.dtype)

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
        assert isinstance(plan, attention.CpuAttentionPlan)
        if cap is not None or sinks is not None:  # torch's fused attention has neither
            return attend(query, kv_layer, plan.metadata, window, cap, sinks, scale=scale)
        if scale is not None:  # it divides by the root
            query = query * (scale * math.sqrt(query.shape[-1]))
        return attention.attend(query, kv_layer, plan.under(window))

    def mask_logits(self, logits: Tensor, bitmask: Tensor) -> None:
        sampling.mask_logits(logits, bitmask)

    def sample(self, logits: Tensor, columns: SamplingColumns) -> Tensor:
        return sampling.sample(logits, columns)

    def sample_among(self, logits: Tensor, token_ids: Tensor, columns: SamplingColumns) -> Tensor:
        return sampling.sample_among(logits, token_ids, columns)


def _rotate(heads: Tensor, rope: RopeRows) -> Tensor:
    """`kernels.reference.apply_rope` without its copies if all dimensions rotate."""
    half = rope.cos.shape[-1]
    if 2 * half != heads.shape[-1]:
        return apply_rope(heads, rope)
    first, second = heads[..., :half], heads[..., half:]
    rotated = torch.empty_like(heads)
    torch.mul(first, rope.cos, out=rotated[..., :half]).addcmul_(second, rope.sin, value=-1)
    torch.mul(second, rope.cos, out=rotated[..., half:]).addcmul_(first, rope.sin)
    return rotated
