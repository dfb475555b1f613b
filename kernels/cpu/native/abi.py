"""ctypes declarations of `src/turnpike.h`: its structs, field by field, and function signatures."""

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum

ABI = 16
"""TP_ABI."""


class Level(IntEnum):
    """Instruction set that the library uses."""

    PORTABLE = 0
    AVX2 = 1
    AVX512_BF16 = 2
    AVX512_FLOAT = 3
    """Like AVX512_BF16, but products with bf16 weights use float32 multiply-adds."""
    AMX = 4


class Format(IntEnum):
    """Storage format of a weight. The first three are packed from bf16 rows, the others from rows of blocks: of GGUF
    files, of `kernels.integers` (U4 and U8), of `kernels.floats8` (E4M3), and of `kernels.cpu.native.w8a8`."""

    BF16 = 0
    INT8 = 1
    INT4 = 2
    Q4_0 = 3
    Q4_1 = 4
    Q8_0 = 5
    Q4_K = 6
    Q6_K = 7
    U4_32 = 8
    U4_64 = 9
    U4_128 = 10
    U8_32 = 11
    U8_64 = 12
    U8_128 = 13
    Q5_0 = 14
    Q5_1 = 15
    Q2_K = 16
    Q3_K = 17
    Q5_K = 18
    IQ4_NL = 19
    IQ4_XS = 20
    MXFP4 = 21
    E4M3_32 = 22
    E4M3_128 = 23
    W8A8 = 24


class Store(IntEnum):
    """How a product's sums are stored."""

    BF16 = 0
    FLOAT32 = 1
    ADD_FLOAT32 = 2
    SILU_MUL = 3
    GELU_MUL = 4
    CLAMPED_MUL = 5


class KV(IntEnum):
    """Storage format of a layer's KV."""

    BF16 = 0
    INT8 = 1


class Weight(Structure):
    """TpWeight."""

    _fields_ = (
        ("format", c_int32),
        ("input_scale", c_float),
        ("outputs", c_int64),
        ("inputs", c_int64),
        ("packed", c_void_p),
        ("bias", c_void_p),
    )


MOST_PARTS = 3


class Linear(Structure):
    """TpLinear."""

    _fields_ = (("count", c_int64), ("part", Weight * MOST_PARTS))


class Routing(Structure):
    """TpRouting."""

    _fields_ = (
        ("experts", c_int64),
        ("per_token", c_int64),
        ("sigmoid", c_int32),
        ("renormalise", c_int32),
        ("scale", c_float),
        ("groups", c_int64),
        ("groups_per_token", c_int64),
        ("group_best", c_int64),
        ("choice_bias", c_void_p),
        ("share_scale", c_void_p),
    )


class Expert(Structure):
    """TpExpert."""

    _fields_ = (("gate_up", Linear), ("down", Linear))


class Mixture(Structure):
    """TpMixture."""

    _fields_ = (
        ("router", Linear),
        ("routing", Routing),
        ("expert", POINTER(Expert)),
        ("shared", POINTER(Expert)),
        ("activation", c_int32),
        ("expert_tokens", c_void_p),
    )


class LowRankPart(Structure):
    """TpLowRankPart."""

    _fields_ = (
        ("first", c_int64),
        ("outputs", c_int64),
        ("rank", c_int64),
        ("inputs", c_int64),
        ("down", c_void_p),
        ("up", c_void_p),
    )


class Adapter(Structure):
    """TpAdapter."""

    _fields_ = (("change", c_void_p),)


class Adapters(Structure):
    """TpAdapters."""

    _fields_ = (("slots", c_int64), ("rank", c_int64), ("slot", c_void_p), ("of_row", c_void_p))


class Rows(Structure):
    """TpRows."""

    _fields_ = (
        ("rows", c_int64),
        ("tokens", c_int64),
        ("query_lens", c_void_p),
        ("context_lens", c_void_p),
        ("block_tables", c_void_p),
        ("block_table_stride", c_int64),
        ("adapters", c_void_p),
    )


class Heads(Structure):
    """TpHeads."""

    _fields_ = (
        ("query_heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("norm_eps", c_float),
        ("kv", c_int32),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("value_norm", c_void_p),
        ("rotary_half", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("score_scale", c_float),
        ("softcap", c_float),
        ("sinks", c_void_p),
        ("kv_block_bytes", c_int64),
        ("keys_only", c_int64),
    )


class Delta(Structure):
    """TpDelta."""

    _fields_ = (
        ("key_heads", c_int64),
        ("value_heads", c_int64),
        ("key_dim", c_int64),
        ("value_dim", c_int64),
        ("taps", c_int64),
        ("tiled", c_int64),
        ("convolution", c_void_p),
        ("decay_rate", c_void_p),
        ("step_bias", c_void_p),
        ("norm", c_void_p),
        ("norm_eps", c_float),
    )


class DeltaRows(Structure):
    """TpDeltaRows."""

    _fields_ = (
        ("rows", c_int64),
        ("first", c_void_p),
        ("tokens", c_void_p),
        ("before", c_void_p),
        ("after", c_void_p),
        ("saves", c_int64),
        ("save_rows", c_void_p),
        ("save_tokens", c_void_p),
        ("save_to", c_void_p),
    )


class Layer(Structure):
    """TpLayer."""

    _fields_ = (
        ("attention_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("mixture", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("whole_norms", c_int64),
        ("window", c_int64),
        ("kv_group", c_int64),
        ("kv_place", c_int64),
    )


class Tables(Structure):
    """TpTables."""

    _fields_ = (("block_tables", c_void_p), ("block_table_stride", c_int64))


class Model(Structure):
    """TpModel."""

    _fields_ = (
        ("hidden", c_int64),
        ("query_heads", c_int64),
        ("kv_heads", c_int64),
        ("head_dim", c_int64),
        ("vocab", c_int64),
        ("layers", c_int64),
        ("norm_eps", c_float),
        ("kv", c_int32),
        ("layer", POINTER(Layer)),
        ("final_norm", c_void_p),
        ("embedding", Weight),
        ("rotary_half", c_int64),
        ("cos", c_void_p),
        ("sin", c_void_p),
    )


class Sampling(Structure):
    """TpSampling."""

    _fields_ = (
        ("inverse_temperature", c_void_p),
        ("noise_scale", c_void_p),
        ("top_k", c_void_p),
        ("top_p", c_void_p),
        ("min_p", c_void_p),
        ("keys", c_void_p),
    )


class Penalties(Structure):
    """TpPenalties."""

    _fields_ = (
        ("tokens", c_void_p),
        ("times", c_void_p),
        ("line_stride", c_int64),
        ("lines", c_void_p),
        ("lengths", c_void_p),
        ("repetition", c_void_p),
        ("presence", c_void_p),
        ("frequency", c_void_p),
        ("drafts", c_int64),
        ("draft_rows", c_void_p),
        ("draft_tokens", c_void_p),
        ("draft_times", c_void_p),
        ("token_columns", c_void_p),
    )


# Pointers are passed as addresses, those to structs by `ctypes.byref` or as addresses.
_AT = c_void_p
_COUNT = c_int64
_LOGITS = (_AT, _COUNT, _COUNT, _COUNT)

SIGNATURES = {
    "tp_level": (c_int32, ()),
    "tp_use_level": (c_int32, (c_int32,)),
    "tp_use_threads": (None, (c_int32,)),
    "tp_packed_bytes": (c_int64, (c_int32, _COUNT, _COUNT)),
    "tp_pack": (None, (c_int32, _AT, _COUNT, _COUNT, _AT)),
    "tp_unpack_row": (None, (c_int32, _AT, _COUNT, _COUNT, _COUNT, _AT)),
    "tp_unpack_rows": (None, (_AT, _AT, _COUNT, _AT)),
    "tp_product_scratch_bytes": (c_int64, (_AT, _COUNT)),
    "tp_product": (None, (_AT, _AT, _COUNT, _COUNT, c_int32, _AT, _COUNT, _AT)),
    "tp_route_scratch_bytes": (c_int64, (_AT, _COUNT)),
    "tp_route": (None, (_AT, _AT, _COUNT, _COUNT, _AT, _AT, _AT)),
    "tp_mixture_scratch_bytes": (c_int64, (_AT, _COUNT)),
    "tp_mixture": (None, (_AT, _AT, _COUNT, _AT, _COUNT, _COUNT, c_int32, _AT, _COUNT, _AT)),
    "tp_head_products_scratch_bytes": (c_int64, (_AT, _COUNT, _COUNT)),
    "tp_head_products": (None, (_AT, _COUNT, _AT, _COUNT, _COUNT, _COUNT, _AT, _COUNT, _COUNT, _AT)),
    "tp_low_rank_bytes": (c_int64, (_AT, _COUNT, _AT, _COUNT)),
    "tp_pack_low_rank": (c_int64, (_AT, _COUNT, _AT, _COUNT, _AT)),
    "tp_adapted_product_scratch_bytes": (c_int64, (_AT, _AT)),
    "tp_adapted_product": (None, (_AT, _AT, _COUNT, _AT, _COUNT, c_int32, _AT, _COUNT, _AT)),
    "tp_rotate_and_store": (None, (_AT, _AT, _AT, _COUNT, _AT)),
    "tp_attend_scratch_bytes": (c_int64, (_AT, _AT)),
    "tp_attend": (None, (_AT, _AT, _AT, _COUNT, _AT, _COUNT, _AT, _COUNT, _AT)),
    "tp_takes_delta": (c_int32, (_AT,)),
    "tp_gated_delta": (None, (_AT, _AT, _AT, _COUNT, _AT, _COUNT, _AT, _COUNT)),
    "tp_sigmoid_mul": (None, (_AT, _COUNT, _COUNT, _COUNT, _AT, _COUNT)),
    "tp_rms_norm": (None, (_AT, _COUNT, _COUNT, _COUNT, _AT, c_float, _AT, _COUNT)),
    "tp_forward_scratch_bytes": (c_int64, (_AT, _AT, _AT, _AT)),
    "tp_forward": (None, (_AT, _AT, _AT, _AT, _AT, _AT, _COUNT, _AT, _AT)),
    "tp_sample_scratch_bytes": (c_int64, (_COUNT, _COUNT)),
    "tp_sample": (None, (*_LOGITS, _AT, _AT, _AT, _AT)),
    "tp_mask_logits": (None, (*_LOGITS, _AT, _COUNT)),
    "tp_penalise": (None, (*_LOGITS, _AT, _AT)),
    "tp_finite_rows": (None, (*_LOGITS, _AT)),
    "tp_token_logprobs": (None, (*_LOGITS, _AT, _AT, _AT, _AT)),
}
"""Result and argument types of every function but `tp_abi`."""
