"""The forward pass of a model as one native call for each product, norm and attention.

Computes the differences between families that the single call of `forward` does not have: norms after attention and
MLP, scales and softcaps, rope by layer, norms of experts, gated attention, gated delta nets. For other models the two
give the same bits.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kernels.adapters import AdaptedProduct
from kernels.arrays import BFLOAT16, FLOAT32, Array, Floats, Ints, address, aligned_bytes
from kernels.cpu.native import abi
from kernels.cpu.native.adapter_packing import product_number
from kernels.cpu.native.adapters import AdapterTable, adapters_at
from kernels.cpu.native.delta import NativeDelta, gate
from kernels.cpu.native.experts import NativeMixture, mlp
from kernels.cpu.native.forward import NativeLayer, NativeWeights, expert_counts, wanted_of_rows
from kernels.cpu.native.heads import HeadProducts
from kernels.cpu.native.layer_inputs import NativeLayerInputs
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import Change, NativeLinear
from kernels.host import StepRows
from kernels.layout import HeadShape, block_numbers, int8_layer_bytes
from kernels.weights import ExpertWeights, HeadNorms, LatentWeights, MlpWeights, ModelShape

_STORES = {
    "silu": abi.Store.SILU_MUL,
    "gelu_tanh": abi.Store.GELU_MUL,
    "clamped_swiglu": abi.Store.CLAMPED_MUL,
}
_INT8 = np.dtype(np.int8)


def needs_stages(shape: ModelShape, weights: NativeWeights) -> bool:
    """Whether `StagedForward` must compute the model."""
    neutral = ModelShape(
        shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.norm_eps, shape.windows, shape.cos, shape.sin
    )
    switches = ("attention_scale", "attention_softcap", "embedding_scale", "residual_scale", "activation")
    if (
        shape.rotary
        or shape.layer_heads
        or shape.kv_sources
        or any(getattr(shape, name) != getattr(neutral, name) for name in switches)
    ):
        return True
    return any(
        layer.expert_norms is not None
        or layer.delta is not None
        or layer.attention_gate is not None
        or layer.attention_norm is None
        or layer.attention_output_norm is not None
        or layer.sinks is not None
        or layer.scalar != 1
        or layer.layer_input is not None
        or isinstance(layer.qkv, LatentWeights)
        or (layer.head_norms is not None and layer.head_norms.value is not None)
        for layer in weights.layers
    )


class StagedForward:
    """Computes with a float32 residual stream and bf16 inputs of products.

    `expert_tokens`: tokens that each expert has computed since the start, over all layers, int64 [experts]; empty
    without experts. `adapters`: those that rows may have; None: none. Not reentrant.
    """

    def __init__(self, shape: ModelShape, weights: NativeWeights) -> None:
        library = load()
        assert library is not None, "there is no native library"
        self.adapters: AdapterTable | None = None
        self._library = library
        self._shape, self._weights = shape, weights
        self._store = _STORES[shape.activation]
        self._embedding_scale = np.float32(np.array(shape.embedding_scale).astype(BFLOAT16))
        self._vectors: dict[int, Floats] = {}
        self._products: dict[int, HeadProducts] = {}
        self._heads = [self._heads_of(index, layer) for index, layer in enumerate(weights.layers)]
        self._rows = abi.Rows()
        self._scratch = aligned_bytes(0)
        self._starts: list[int] = []
        """By layer with KV, where it begins in a block of layers whose heads differ."""
        attending = [layer.delta is None for layer in weights.layers]
        sources = shape.kv_sources or range(len(weights.layers))
        own = [attends and sources[index] == index for index, attends in enumerate(attending)]
        places = [(0, place) for place in range(sum(own))]
        numbers = np.cumsum(own) - 1
        self._kv_numbers = numbers[list(sources)].tolist()
        """By layer, the number of its KV among those of all layers."""
        self._kv_places = [(shape.kv_places or places)[number] for number in self._kv_numbers]
        """By layer with KV: its group, and its number there."""
        self._layer_inputs = NativeLayerInputs(weights)
        self._rotating = [
            heads if is_own else _without_kv(heads) for heads, is_own in zip(self._heads, own, strict=True)
        ]
        self._has_kv = own
        self._deltas = {
            index: NativeDelta(layer.delta, index - int(np.sum(attending[:index])), shape.norm_eps)
            for index, layer in enumerate(weights.layers)
            if layer.delta is not None
        }
        self.expert_tokens = expert_counts(weights)
        self._mixtures = {
            index: self._mixture(layer.mlp, layer)
            for index, layer in enumerate(weights.layers)
            if not isinstance(layer.mlp, MlpWeights)
        }

    def __call__(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        """As `kernels.cpu.native.forward.NativeForward`."""
        if not len(token_ids):
            return np.empty((0, self._weights.embedding.table.in_features), BFLOAT16)
        held = self._take(rows, kv)
        residual = self._weights.embedding.table.rows(token_ids)
        if self._shape.embedding_scale != 1:
            residual = residual * self._embedding_scale
        residual = np.ascontiguousarray(residual)
        inputs = self._layer_inputs(token_ids, residual, self._norm)
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            x = self._input(residual, layer.attention_norm)
            kept = wanted if index == last else None
            if layer.delta is None:
                mixed = self._attention(index, layer, x, rows, kv, kept, held)
            else:
                mixed = self._recurrence(index, layer, x, rows)
                if kept is not None:
                    mixed = mixed[kept]
                    self._keep(kept, rows, held)
            residual = residual if kept is None else residual[kept]
            attended = layer.output.wide(mixed, self._change(index, "output"))
            self._add(residual, attended, layer.attention_output_norm)
            self._add(residual, self._feed_forward(index, layer, residual), layer.mlp_output_norm)
            if layer.layer_input is not None and inputs is not None:
                own = inputs[:, index] if kept is None else inputs[kept, index]
                self._add(residual, self._layer_inputs.added(layer.layer_input, residual, own), layer.layer_input.norm)
            if layer.scalar != 1:
                residual *= np.float32(layer.scalar)
        return self._norm(residual, self._weights.final_norm)

    def settle_drafts(self, rows: StepRows, accepted: Ints) -> None:
        """Advance the states of the rows with drafts of the last call by the accepted ones: `accepted`, int64, one for
        each such row."""
        assert rows.states is not None, "the rows have no states"
        for delta in self._deltas.values():
            delta.settle(rows.query_lens, rows.context_lens - rows.query_lens, rows.states, accepted)

    def _recurrence(self, index: int, layer: NativeLayer, x: Array, rows: StepRows) -> Array:
        """bf16 [T, Hv Dv] of a gated delta net."""
        assert rows.states is not None, "the rows have no states"
        assert isinstance(layer.qkv, NativeLinear), "a gated delta net has no latents"
        starts = rows.context_lens - rows.query_lens
        return self._deltas[index](x, layer.qkv.wide(x), rows.query_lens, starts, rows.states)

    def _attention(
        self, index: int, layer: NativeLayer, x: Array, rows: StepRows, kv: Array, kept: Ints | None, held: list[Array]
    ) -> Array:
        """bf16 [T, Hq D], or [T, Hq Dv] of values of other dimensions, of the tokens `kept` only if stated. Writes the
        KV of all."""
        qkv = self._project(index, layer, x)
        group, place = self._kv_places[index]
        kv_at = address(kv) + (
            place * kv.strides[0] if self._shape.blocks is None else self._starts[self._kv_numbers[index]]
        )
        self._point_at(rows.window_tables[group - 1] if group else rows.block_tables)
        heads_at, rows_at = ctypes.addressof(self._rotating[index]), ctypes.addressof(self._rows)
        self._library.tp_rotate_and_store(heads_at, rows_at, address(qkv), qkv.shape[1], kv_at)
        if kept is not None:
            self._keep(kept, rows, held)
            qkv, x = qkv[kept], x[kept]
        attended = self._attend(index, qkv, kv_at)
        if isinstance(layer.qkv, LatentWeights):
            attended = self._values(layer.qkv, attended)
        if layer.attention_gate is not None:
            gate(attended, layer.attention_gate.wide(x))
        return attended

    def _take(self, rows: StepRows, kv: Array) -> list[Array]:
        """Point the structs at a step's rows. Returns the arrays that must live while they are read."""
        struct = self._rows
        struct.rows, struct.tokens = len(rows.query_lens), int(rows.query_lens.sum())
        struct.query_lens, struct.context_lens = address(rows.query_lens), address(rows.context_lens)
        struct.adapters = adapters_at(rows, self.adapters)
        for heads in self._heads:
            heads.kv = abi.KV.INT8 if kv.dtype == _INT8 else abi.KV.BF16
        if self._shape.blocks is not None:
            self._starts, block_bytes = self._shape.blocks.starts(
                _layer_bytes if kv.dtype != _INT8 else int8_layer_bytes
            )
            assert kv.strides[1] == block_bytes, f"KV is {kv.shape}"
            for heads in self._heads:
                heads.kv_block_bytes = block_bytes
        return [rows.query_lens, rows.context_lens]

    def _keep(self, kept: Ints, rows: StepRows, held: list[Array]) -> None:
        """Reduce the struct's rows to the tokens `kept`."""
        counts = wanted_of_rows(kept, rows.query_lens)
        held.append(counts)
        self._rows.query_lens, self._rows.tokens = address(counts), len(kept)

    def _change(self, layer: int, product: AdaptedProduct) -> Change | None:
        """The changes of the adapters of the struct's rows to a product; None if no row has one."""
        if not self._rows.adapters:
            return None
        return Change(ctypes.addressof(self._rows), product_number(layer, product))

    def _point_at(self, tables: Ints) -> None:
        """Read and write KV by these block tables, which live as long as the step's rows."""
        assert tables.shape[1] < 2 or tables.strides[1] == 8, "block tables whose rows are not contiguous"
        self._rows.block_tables, self._rows.block_table_stride = address(tables), tables.strides[0] // 8

    def _input(self, residual: Floats, weight: Floats | None) -> Array:
        """The input of a branch, bf16 [T, H]: the residual stream, normed if there is a norm."""
        return residual.astype(BFLOAT16) if weight is None else self._norm(residual, weight)

    def _norm(self, x: Floats, weight: Floats) -> Array:
        normed = np.empty(x.shape, BFLOAT16)
        self._norm_into(x, weight, normed)
        return normed

    def _norm_into(self, x: Floats, weight: Floats, out: Array, eps: float | None = None) -> None:
        assert x.strides[1] == 4, "rows that are not contiguous"
        weight = self._vector(weight)
        self._library.tp_rms_norm(
            address(x),
            x.strides[0] // 4,
            *x.shape,
            address(weight),
            self._shape.norm_eps if eps is None else eps,
            address(out),
            out.strides[0] // 2,
        )

    def _project(self, index: int, layer: NativeLayer, x: Array) -> Array:
        """qkv bf16 [T, (Hq + 2 Hkv) D], or queries and keys [T, (Hq + Hkv) D], or queries alone [T, Hq D]."""
        if isinstance(layer.qkv, LatentWeights):
            return self._of_latents(layer.qkv, x)
        heads, change = self._shape.heads_of(index), self._change(index, "qkv")
        if not self._has_kv[index]:
            return layer.qkv(x, change)
        if not heads.has_values:
            projected = layer.qkv(x, change)
            return np.concatenate((projected, projected[:, -heads.kv_heads * heads.dim :]), axis=1)
        norms = layer.head_norms
        if norms is None or not norms.whole:
            return layer.qkv(x, change)
        wide = layer.qkv.wide(x, change)
        qkv = wide.astype(BFLOAT16)
        first = 0
        for weight in (norms.query, norms.key):
            last = first + len(weight)
            self._norm_into(wide[:, first:last], weight, qkv[:, first:last])
            first = last
        return qkv

    def _of_latents(self, weights: LatentWeights[Floats, NativeLinear], x: Array) -> Array:
        """bf16 [T, (Hq + 1) D'] of keys of D' dimensions: queries, and the key that all heads share."""
        heads, rotated = self._shape.num_heads, weights.rotated
        query = x
        if weights.query_down is not None and weights.query_norm is not None:
            query = self._latent(weights.query_down.wide(x), weights.query_norm, weights.eps)
        of_heads = weights.query_up(query).reshape(len(x), heads, -1)
        down = weights.down.wide(x)
        rank = down.shape[1] - rotated
        qkv = np.empty((len(x), heads + 1, rotated + rank), BFLOAT16)
        qkv[:, :-1, :rotated] = of_heads[:, :, :rotated]
        self._head_products(weights.of_queries).into(of_heads[:, :, rotated:], qkv[:, :-1, rotated:])
        qkv[:, -1, :rotated] = down[:, rank:]
        self._norm_into(down[:, :rank], weights.norm, qkv[:, -1, rotated:], weights.eps)
        return qkv.reshape(len(x), -1)

    def _values(self, weights: LatentWeights[Floats, NativeLinear], attended: Array) -> Array:
        """bf16 [T, Hq Dv] of what attention returns of keys [T, Hq D']."""
        of_heads = attended.reshape(len(attended), self._shape.num_heads, -1)
        values = np.empty((len(attended), self._shape.num_heads, weights.value_dim), BFLOAT16)
        self._head_products(weights.of_values).into(of_heads[:, :, weights.rotated :], values)
        return values.reshape(len(attended), -1)

    def _head_products(self, heads: Sequence[NativeLinear]) -> HeadProducts:
        held = self._products.get(id(heads))
        if held is None:
            held = self._products[id(heads)] = HeadProducts(heads)
        return held

    def _latent(self, x: Floats, weight: Floats, eps: float) -> Array:
        normed = np.empty(x.shape, BFLOAT16)
        self._norm_into(x, weight, normed, eps)
        return normed

    def _attend(self, index: int, qkv: Array, kv_at: int) -> Array:
        """bf16 [T, Hq D]."""
        shape, heads_at, rows_at = self._shape, ctypes.addressof(self._heads[index]), ctypes.addressof(self._rows)
        dim = shape.heads_of(index).dim
        size = self._library.tp_attend_scratch_bytes(heads_at, rows_at)
        assert size >= 0, f"heads of {dim} dimensions"
        if size > len(self._scratch):
            self._scratch = aligned_bytes(size)
        out = np.empty((len(qkv), shape.num_heads * dim), BFLOAT16)
        self._library.tp_attend(
            heads_at,
            rows_at,
            address(qkv),
            qkv.shape[1],
            kv_at,
            shape.windows[index] or 0,
            address(out),
            out.shape[1],
            address(self._scratch),
        )
        return out

    def _feed_forward(self, index: int, layer: NativeLayer, residual: Floats) -> Floats:
        x = self._input(residual, layer.mlp_norm)
        if isinstance(layer.mlp, MlpWeights):
            return mlp(layer.mlp, x, self._store, self._change(index, "gate_up"), self._change(index, "down"))
        if layer.expert_norms is None:
            return self._mixtures[index](x)
        norms = layer.expert_norms
        assert layer.mlp.shared is not None, "these norms belong to a mixture with a shared MLP"
        own, routed = (self._norm(residual, norm) for norm in (norms.experts, norms.router))
        shared = self._norm(mlp(layer.mlp.shared, x, self._store), norms.shared_output).astype(FLOAT32)
        shared += self._norm(self._mixtures[index](own, routed), norms.experts_output).astype(FLOAT32)
        return shared

    def _mixture(self, weights: ExpertWeights[Floats, NativeLinear], layer: NativeLayer) -> NativeMixture:
        """Of experts alone, if the shared MLP has norms of its own."""
        if layer.expert_norms is not None:
            weights = replace(weights, shared=None)
        return NativeMixture(weights, self._store, self.expert_tokens)

    def _add(self, residual: Floats, branch: Floats, norm: Floats | None) -> None:
        """Add a branch's output [T, H] to the residual stream, in place."""
        if norm is not None:
            branch = self._norm(branch, norm).astype(FLOAT32)
        if self._shape.residual_scale != 1:
            branch = branch * np.float32(self._shape.residual_scale)
        residual += branch

    def _heads_of(self, index: int, layer: NativeLayer) -> abi.Heads:
        shape = self._shape
        cos, sin = shape.rotary[index] if shape.rotary else (shape.cos, shape.sin)
        norms: HeadNorms[Floats] | None = layer.head_norms
        of_heads = None if norms is None or norms.whole else norms
        value_norm = None if of_heads is None else of_heads.value
        heads = shape.heads_of(index)
        return abi.Heads(
            query_heads=shape.num_heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.dim,
            norm_eps=shape.norm_eps,
            query_norm=None if of_heads is None else address(self._vector(of_heads.query)),
            key_norm=None if of_heads is None else address(self._vector(of_heads.key)),
            value_norm=None if value_norm is None else address(self._vector(value_norm)),
            rotary_half=cos.shape[1],
            cos=address(self._vector(cos)),
            sin=address(self._vector(sin)),
            score_scale=shape.attention_scale or 0.0,
            softcap=shape.attention_softcap or 0.0,
            sinks=None if layer.sinks is None else address(self._vector(layer.sinks)),
            keys_only=heads.keys_only,
        )

    def _vector(self, numbers: Floats) -> Floats:
        """The numbers in contiguous float32, alive as long as this object."""
        held = self._vectors.get(id(numbers))
        if held is None:
            held = self._vectors[id(numbers)] = np.ascontiguousarray(numbers, FLOAT32)
        return held


def _without_kv(heads: abi.Heads) -> abi.Heads:
    queries = abi.Heads.from_buffer_copy(heads)
    queries.kv_heads = 0
    return queries


def _layer_bytes(heads: HeadShape) -> int:
    return 2 * block_numbers(heads)
