"""The shipped variants of the kernels from logits to tokens, as described in `kernels.triton.variants`.

There is one variant for each path through the code: logits in the model's dtype or in float32, with thresholds and
without, keyed by slots and by given keys, and vocabularies of as many strips and tiles as models have. Logits and their
rows are aligned: vocabularies are multiples of 16, or padded to one.
"""

from itertools import product

from kernels.step import ROW_WORDS
from kernels.triton import bitmask, logprobs, penalties, sampling, thresholds
from kernels.triton.variants import KernelVariant

_DTYPES = ("fp32", "bf16", "fp16")
_VOCABULARIES = (32_000, 128_256, 262_144)

_COLUMNS = {
    "row_slots": "*i32",
    "inverse_temperature": "*fp32",
    "noise_scale": "*fp32",
    "top_k": "*i32",
    "top_p": "*fp32",
    "min_p": "*fp32",
}
_UNCHECKED = ("finite_tokens", "query_starts", "finite")
_ALIGNED_LOGITS = frozenset({"logits", "logits_stride", "vocab_size"})


def sampling_variants() -> list[KernelVariant]:
    """All variants of these kernels."""
    return [
        *(_draw_tiles(dtype, filtered) for dtype, filtered in product(_DTYPES, (False, True))),
        _draw_tiles("fp32", filtered=True, given_keys=True),
        *(_strip_maxima(dtype) for dtype in _DTYPES),
        *(_coarse_masses("fp32", vocab_size) for vocab_size in _VOCABULARIES),
        *(_coarse_masses(dtype, 128_256) for dtype in ("bf16", "fp16")),
        *(_search("fp32", vocab_size) for vocab_size in _VOCABULARIES),
        *(_search(dtype, 128_256) for dtype in ("bf16", "fp16")),
        *(_penalise(dtype) for dtype in _DTYPES),
        *(_mask_rows(dtype) for dtype in _DTYPES),
        *(_measure_tiles(dtype) for dtype in _DTYPES),
        *(_draw_rows(vocab_size, absent=()) for vocab_size in _VOCABULARIES),
        _draw_rows(128_256, "-of-rows", absent=("rows", "last")),
        _draw_rows(128_256, "-of-drafts", absent=_UNCHECKED),
        _draw_rows(128_256, "-unstored", absent=(*_UNCHECKED, "rows", "lines", "last", "sequences")),
        *(_measure_rows(dtype, 128_256) for dtype in _DTYPES),
    ]


def _draw_tiles(dtype: str, filtered: bool, given_keys: bool = False) -> KernelVariant:
    signature = {
        "logits": f"*{dtype}",
        "row_slots": "*i32",
        "inverse_temperature": "*fp32",
        "noise_scale": "*fp32",
        "seeds": "*i64",
        "scores": "*fp32",
        "tokens": "*i32",
        "states": "*i32",
        "logits_stride": "i32",
        "scores_stride": "i32",
        "vocab_size": "i32",
    }
    absent = {"positions"} if given_keys else {"keys"}
    absent |= set() if filtered else {"thresholds"}
    optional = {"positions": "*i64", "keys": "*i64", "thresholds": "*fp32"}
    signature |= {name: kind for name, kind in optional.items() if name not in absent}
    return KernelVariant(
        f"draw-tiles-{dtype}" + "-filtered" * filtered + "-keyed" * given_keys,
        sampling.draw_tiles_kernel,
        signature,
        dict.fromkeys(sorted(absent)) | {"TILE": sampling.TILE},
        aligned=_ALIGNED_LOGITS,
        wide_loads=True,
        fused_products=False,
    )


def _draw_rows(vocab_size: int, suffix: str = "", *, absent: tuple[str, ...]) -> KernelVariant:
    signature = {
        "scores": "*fp32",
        "tokens": "*i32",
        "states": "*i32",
        "finite_tokens": "*i8",
        "query_starts": "*i32",
        "rows": "*i32",
        "lines": "*i32",
        "last": "*i64",
        "sequences": "*i32",
        "ids": "*i64",
        "sound": "*i1",
        "finite": "*i1",
        "tiles": "i32",
        "length": "i32",
        "sequences_stride": "i32",
    }
    tiles = _power_above(vocab_size, sampling.TILE)
    return KernelVariant(
        f"draw-rows-{tiles}{suffix}",
        sampling.draw_rows_kernel,
        {name: kind for name, kind in signature.items() if name not in absent},
        {"TILES": tiles, "FLAGS": sampling.FLAGS, "ROW": ROW_WORDS} | dict.fromkeys(absent),
    )


def _strip_maxima(dtype: str) -> KernelVariant:
    signature = _COLUMNS | {
        "logits": f"*{dtype}",
        "maxima": "*i32",
        "logits_stride": "i32",
        "strips": "i32",
        "vocab_size": "i32",
    }
    constexprs = {"STRIPS": thresholds.STRIPS_OF_PROGRAM}
    return KernelVariant(
        f"strip-maxima-{dtype}",
        thresholds.strip_maxima_kernel,
        signature,
        constexprs,
        aligned=_ALIGNED_LOGITS,
        wide_loads=True,
    )


def _coarse_masses(dtype: str, vocab_size: int) -> KernelVariant:
    signature = _COLUMNS | {
        "logits": f"*{dtype}",
        "maxima": "*i32",
        "masses": "*i64",
        "logits_stride": "i32",
        "strips": "i32",
        "vocab_size": "i32",
    }
    strips = _power_above(vocab_size, thresholds.STRIP.value)
    return KernelVariant(
        f"coarse-masses-{dtype}-{strips}",
        thresholds.coarse_masses_kernel,
        signature,
        {"STRIPS": strips, "TILE": thresholds.COARSE_TILE},
        aligned=_ALIGNED_LOGITS,
        fused_products=False,
    )


def _search(dtype: str, vocab_size: int) -> KernelVariant:
    signature = _COLUMNS | {
        "logits": f"*{dtype}",
        "maxima": "*i32",
        "masses": "*i64",
        "listed": "*i32",
        "thresholds": "*fp32",
        "logits_stride": "i32",
        "strips": "i32",
        "tiles": "i32",
        "vocab_size": "i32",
    }
    strips = _power_above(vocab_size, thresholds.STRIP.value)
    tiles = _power_above(vocab_size, thresholds.COARSE_TILE)
    return KernelVariant(
        f"search-{dtype}-{strips}",
        thresholds.search_kernel,
        signature,
        {"STRIPS": strips, "TILES": tiles, "TILE": thresholds.TILE},
        aligned=_ALIGNED_LOGITS,
        num_warps=thresholds.SEARCH_WARPS,
        fused_products=False,
    )


def _penalise(dtype: str) -> KernelVariant:
    signature = {
        "logits": f"*{dtype}",
        "row_slots": "*i32",
        "repetition_penalty": "*fp32",
        "presence_penalty": "*fp32",
        "frequency_penalty": "*fp32",
        "counts": "*i32",
        "logits_stride": "i32",
        "counts_stride": "i32",
        "vocab_size": "i32",
    }
    return KernelVariant(
        f"penalise-{dtype}",
        penalties.penalise_kernel,
        signature,
        {"TILE": penalties.TILE},
        aligned=_ALIGNED_LOGITS | {"counts", "counts_stride"},
    )


def _mask_rows(dtype: str) -> KernelVariant:
    signature = {
        "logits": f"*{dtype}",
        "rows": "*i64",
        "bitmask": "*i32",
        "logits_stride": "i32",
        "bitmask_stride": "i32",
        "vocab_size": "i32",
    }
    return KernelVariant(
        f"mask-rows-{dtype}",
        bitmask.mask_rows_kernel,
        signature,
        {"TILE": bitmask.TILE},
        aligned=_ALIGNED_LOGITS,
    )


def _measure_tiles(dtype: str) -> KernelVariant:
    signature = {
        "logits": f"*{dtype}",
        "rows": "*i64",
        "tokens": "*i64",
        "maxima": "*fp32",
        "masses": "*i64",
        "larger": "*i32",
        "logits_stride": "i32",
        "tiles": "i32",
        "vocab_size": "i32",
    }
    return KernelVariant(
        f"measure-tiles-{dtype}",
        logprobs.measure_tiles_kernel,
        signature,
        {"TILE": logprobs.TILE},
        aligned=_ALIGNED_LOGITS,
        wide_loads=True,
    )


def _measure_rows(dtype: str, vocab_size: int) -> KernelVariant:
    signature = {
        "logits": f"*{dtype}",
        "rows": "*i64",
        "tokens": "*i64",
        "maxima": "*fp32",
        "masses": "*i64",
        "larger": "*i32",
        "normalisers": "*fp32",
        "logprobs": "*fp32",
        "ranks": "*i64",
        "logits_stride": "i32",
        "tiles": "i32",
    }
    tiles = _power_above(vocab_size, logprobs.TILE)
    return KernelVariant(
        f"measure-rows-{dtype}-{tiles}", logprobs.measure_rows_kernel, signature, {"TILES": tiles}, num_warps=1
    )


def _power_above(vocab_size: int, width: int) -> int:
    """The power of two that holds the parts of a vocabulary, `width` tokens each."""
    return 1 << (-(-vocab_size // width) - 1).bit_length()
