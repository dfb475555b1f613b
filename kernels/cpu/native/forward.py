"""A step through all layers of a model in one call of the native library."""

import ctypes

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.attention import CpuAttentionPlan
from kernels.cpu.native import abi
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import NativeEmbedding, NativeLinear
from kernels.layout import BLOCK_TOKENS, int8_block_bytes
from kernels.ops import AttentionPlan, Counts, LayerWeights, ModelShape, ModelWeights


class NativeForward:
    """See `kernels.ops.ForwardPass`. The residual stream is float32, what goes into products bf16.

    Structs are made once and filled in anew each step; the memory that a step computes in is kept, and grows with the
    largest one. One call at a time.
    """

    def __init__(self, shape: ModelShape, weights: ModelWeights) -> None:
        library = load()
        assert library is not None, "there is no native library"
        assert isinstance(weights.embedding, NativeEmbedding)
        self._library = library
        self._weights = weights
        self._vectors: list[Tensor] = []
        self._layers = (abi.Layer * len(weights.layers))()
        for struct, layer, window in zip(self._layers, weights.layers, shape.windows, strict=True):
            self._fill(struct, layer, window)
        table = weights.embedding.table
        self._hidden_size = table.in_features
        self._kv_shapes = {
            torch.bfloat16: (len(weights.layers), BLOCK_TOKENS, 2, shape.num_kv_heads, shape.head_dim),
            torch.int8: (len(weights.layers), int8_block_bytes(shape.num_kv_heads, shape.head_dim)),
        }
        self._model = abi.Model(
            hidden=table.in_features,
            query_heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            inner=weights.layers[0].gate_up.out_features // 2,
            vocab=table.out_features,
            layers=len(weights.layers),
            norm_eps=shape.norm_eps,
            layer=self._layers,
            final_norm=self._vector(weights.final_norm),
            embedding=table.struct.part[0],
            rotary_half=shape.cos.shape[1],
            cos=self._vector(shape.cos),
            sin=self._vector(shape.sin),
        )
        self._rows = abi.Rows()
        self._model_at, self._rows_at = ctypes.addressof(self._model), ctypes.addressof(self._rows)
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def __call__(self, token_ids: Tensor, plan: AttentionPlan, kv: Tensor, wanted: Counts | None = None) -> Tensor:
        assert isinstance(plan, CpuAttentionPlan)
        metadata, rows = plan.metadata, self._rows
        tables = metadata.block_tables
        assert (kv.shape[0], *kv.shape[2:]) == self._kv_shapes[kv.dtype], f"KV is {tuple(kv.shape)}"
        assert (token_ids.dtype, tables.dtype) == (torch.int64, torch.int64)
        assert (kv.is_contiguous(), token_ids.stride(0), tables.stride(1)) == (True, 1, 1)
        rows.rows, rows.tokens = len(metadata.query_lens), len(token_ids)
        rows.query_lens = metadata.query_lens.__array_interface__["data"][0]
        rows.context_lens = metadata.context_lens.__array_interface__["data"][0]
        rows.block_tables, rows.block_table_stride = tables.data_ptr(), tables.stride(0)
        self._model.kv = abi.KV.INT8 if kv.dtype == torch.int8 else abi.KV.BF16
        counts = None if wanted is None else _wanted_of_rows(wanted, metadata.query_lens)
        wanted_at = None if counts is None else counts.__array_interface__["data"][0]
        size = self._library.tp_forward_scratch_bytes(self._model_at, self._rows_at, wanted_at)
        assert size >= 0, f"heads of {self._model.head_dim} dimensions"
        if size > len(self._scratch):
            self._scratch = torch.empty(size, dtype=torch.uint8)
        tokens = len(token_ids) if wanted is None else len(wanted)
        hidden = torch.empty((tokens, self._hidden_size), dtype=torch.bfloat16)
        self._library.tp_forward(
            self._model_at,
            self._rows_at,
            wanted_at,
            token_ids.data_ptr(),
            kv.data_ptr(),
            kv.stride(0) * kv.element_size(),
            hidden.data_ptr(),
            self._scratch.data_ptr(),
        )
        return hidden

    def _fill(self, struct: abi.Layer, layer: LayerWeights, window: int | None) -> None:
        for name in ("qkv", "output", "gate_up", "down"):
            linear = getattr(layer, name)
            assert isinstance(linear, NativeLinear), f"{name} is packed for another pass"
            setattr(struct, name, linear.struct)
        struct.attention_norm, struct.mlp_norm = self._vector(layer.attention_norm), self._vector(layer.mlp_norm)
        if layer.head_norms is not None:
            struct.query_norm = self._vector(layer.head_norms.query)
            struct.key_norm = self._vector(layer.head_norms.key)
        struct.window = window or 0

    def _vector(self, numbers: Tensor) -> int:
        """Where the numbers lie in float32, from now on for as long as this lives."""
        self._vectors.append(numbers.float().contiguous())
        return self._vectors[-1].data_ptr()


def _wanted_of_rows(wanted: Counts, query_lens: Counts) -> Counts:
    """How many tokens are wanted of each row, of which they are the last."""
    ends = query_lens.cumsum()
    counts: Counts = np.searchsorted(wanted, ends)
    counts[1:] -= counts[:-1].copy()
    assert counts.min() > 0, "nothing is wanted of a row"
    assert len(wanted) == counts.sum(), "a token is wanted that is not there"
    assert (wanted[counts.cumsum() - counts] == ends - counts).all(), "not a row's last tokens"
    return counts
