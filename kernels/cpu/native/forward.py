"""The forward pass of a model through all layers, as one call of the native library."""

import ctypes

import numpy as np

from kernels.arrays import BFLOAT16, FLOAT32, Array, Floats, Ints, address, aligned_bytes
from kernels.cpu.native import abi
from kernels.cpu.native.adapters import AdapterTable, adapters_at
from kernels.cpu.native.experts import NativeMixture
from kernels.cpu.native.library import load
from kernels.cpu.native.linear import NativeEmbedding, NativeLinear
from kernels.host import StepRows
from kernels.layout import BLOCK_TOKENS, int8_block_bytes
from kernels.weights import LatentWeights, LayerWeights, MlpWeights, ModelShape, ModelWeights

NativeLayer = LayerWeights[Floats, NativeLinear]
NativeWeights = ModelWeights[Floats, NativeLinear, NativeEmbedding]

_INT8 = np.dtype(np.int8)
_INT64 = np.dtype(np.int64)


class NativeForward:
    """Computes with a float32 residual stream and bf16 inputs of products.

    `expert_tokens`: tokens that each expert has computed since the start, over all layers, int64 [experts]; empty
    without experts. `adapters`: those that rows may have; None: none. Structs are built once and updated at each step;
    the scratch memory is kept and grows with the largest step. Not reentrant.
    """

    def __init__(self, shape: ModelShape, weights: NativeWeights) -> None:
        library = load()
        assert library is not None, "there is no native library"
        self.adapters: AdapterTable | None = None
        self._library = library
        self._weights = weights
        self._vectors: list[Floats] = []
        self.expert_tokens = expert_counts(weights)
        self._mixtures: list[NativeMixture] = []
        self._layers = (abi.Layer * len(weights.layers))()
        places = shape.kv_places or [(0, place) for place in range(len(weights.layers))]
        for struct, layer, window, place in zip(self._layers, weights.layers, shape.windows, places, strict=True):
            self._fill(struct, layer, window)
            struct.kv_group, struct.kv_place = place
        groups, kv_layers = (1 + max(numbers) for numbers in zip(*places, strict=True))
        table = weights.embedding.table
        self._hidden_size = table.in_features
        self._kv_shapes = {
            BFLOAT16: (kv_layers, BLOCK_TOKENS, 2, shape.num_kv_heads, shape.head_dim),
            _INT8: (kv_layers, int8_block_bytes(shape.num_kv_heads, shape.head_dim)),
        }
        self._model = abi.Model(
            hidden=table.in_features,
            query_heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
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
        self._tables = (abi.Tables * groups)()
        self._tables_at = ctypes.addressof(self._tables)
        self._model_at, self._rows_at = ctypes.addressof(self._model), ctypes.addressof(self._rows)
        self._scratch = aligned_bytes(0)

    def __call__(self, token_ids: Ints, rows: StepRows, kv: Array, wanted: Ints | None = None) -> Array:
        """Hidden states bf16 [T, H] of a step's tokens int64 [T], normed for the head. Writes their KV into kv, bf16
        [L, N, 16, 2, Hkv, D] or int8 [L, N, bytes], of the L layers of a block, and reads no slot past a row's context.

        `wanted`, int64 [W], ascending: return the states of these tokens only, [W, H]. They are the last tokens of each
        row, at least one of each.
        """
        query_lens, context_lens = rows.query_lens, rows.context_lens
        assert (kv.shape[0], *kv.shape[2:]) == self._kv_shapes[kv.dtype], f"KV is {kv.shape}"
        assert (token_ids.dtype, query_lens.dtype, context_lens.dtype) == (_INT64,) * 3
        assert all(array.flags.c_contiguous for array in (kv, token_ids, query_lens, context_lens))
        for group, tables in zip(self._tables, (rows.block_tables, *rows.window_tables), strict=True):
            assert tables.dtype == _INT64
            assert tables.shape[1] < 2 or tables.strides[1] == 8, "block tables whose rows are not contiguous"
            group.block_tables, group.block_table_stride = address(tables), tables.strides[0] // 8
        struct = self._rows
        struct.rows, struct.tokens = len(query_lens), len(token_ids)
        struct.query_lens, struct.context_lens = address(query_lens), address(context_lens)
        struct.adapters = adapters_at(rows, self.adapters)
        self._model.kv = abi.KV.INT8 if kv.dtype == _INT8 else abi.KV.BF16
        counts = None if wanted is None else wanted_of_rows(wanted, query_lens)
        wanted_at = None if counts is None else address(counts)
        size = self._library.tp_forward_scratch_bytes(self._model_at, self._rows_at, self._tables_at, wanted_at)
        assert size >= 0, f"heads of {self._model.head_dim} dimensions"
        if size > len(self._scratch):
            self._scratch = aligned_bytes(size)
        hidden = np.empty((len(token_ids) if wanted is None else len(wanted), self._hidden_size), BFLOAT16)
        self._library.tp_forward(
            self._model_at,
            self._rows_at,
            self._tables_at,
            wanted_at,
            address(token_ids),
            address(kv),
            kv.strides[0],
            address(hidden),
            address(self._scratch),
        )
        return hidden

    def _fill(self, struct: abi.Layer, layer: NativeLayer, window: int | None) -> None:
        assert layer.expert_norms is None, "a mixture with norms of its own is computed in stages"
        assert not isinstance(layer.qkv, LatentWeights), "latent attention is computed in stages"
        assert layer.attention_norm is not None, "a layer without this norm is computed in stages"
        assert layer.mlp_norm is not None, "a layer without this norm is computed in stages"
        struct.qkv, struct.output = layer.qkv.struct, layer.output.struct
        if isinstance(layer.mlp, MlpWeights):
            struct.gate_up, struct.down = layer.mlp.gate_up.struct, layer.mlp.down.struct
        else:
            mixture = NativeMixture(layer.mlp, abi.Store.SILU_MUL, self.expert_tokens)
            self._mixtures.append(mixture)
            struct.mixture = ctypes.addressof(mixture.struct)
        struct.attention_norm, struct.mlp_norm = self._vector(layer.attention_norm), self._vector(layer.mlp_norm)
        if layer.head_norms is not None:
            struct.query_norm = self._vector(layer.head_norms.query)
            struct.key_norm = self._vector(layer.head_norms.key)
            struct.whole_norms = layer.head_norms.whole
        struct.window = window or 0

    def _vector(self, numbers: Floats) -> int:
        """Address of the numbers in float32, valid for the lifetime of this object."""
        self._vectors.append(np.ascontiguousarray(numbers, FLOAT32))
        return address(self._vectors[-1])


def expert_counts(weights: NativeWeights) -> Ints:
    """A count for each expert of the layer with the most, int64 [experts], zero."""
    experts = [len(layer.mlp.experts) for layer in weights.layers if not isinstance(layer.mlp, MlpWeights)]
    return np.zeros(max(experts, default=0), np.int64)


def wanted_of_rows(wanted: Ints, query_lens: Ints) -> Ints:
    """How many of each row's last tokens are wanted."""
    ends = query_lens.cumsum()
    counts: Ints = np.searchsorted(wanted, ends)
    counts[1:] -= counts[:-1].copy()
    assert counts.min() > 0, "nothing is wanted of a row"
    assert len(wanted) == counts.sum(), "a token is wanted that is not there"
    assert (wanted[counts.cumsum() - counts] == ends - counts).all(), "not a row's last tokens"
    return counts
