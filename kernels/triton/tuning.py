"""Launch parameters of the attention kernels: tiles, warps and stages as data.

`num_stages` counts the stages of the loop over keys. Block ids take two before keys and values get any: 5 gives each of
those two buffers, 3 only one.

Numbers of programs were found by compiling with Triton 3.6 and 3.7: `python -m kernels.triton.report` shows what fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernels.triton.attention_tiles import DECODE, EXTEND, FEW_QUERY_ROWS
from kernels.triton.capability import HOPPER
from kernels.triton.plan import SPLIT_TOKENS

MAX_HEAD_DIM = 512

_MERGED_NUMBERS = 128
"""Numbers of a split that a warp merges at a time: 16 bytes a thread. Several splits are in flight. Four warps at the
most do so in a program that shares a multiprocessor, and has fewer registers."""

# Of a multiprocessor, and of a thread at the most, of every capability in `LIMITS`.
_REGISTERS, _REGISTERS_OF_THREAD = 64 * 1024, 255
_REGISTERS_GRANTED_AT_ONCE = 8
_WARP_THREADS = 32


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The compile-time constants of a layer's attention.

    group: query heads that share a KV head. window: sliding window in tokens, 0 for none. kv_bytes: bytes of a stored
    number. cap: softcap of scores, 0 for none. capability: of the GPU, one of `kernels.triton.capability.LIMITS`.
    """

    kv_heads: int
    group: int
    head_dim: int
    window: int
    kv_bytes: int
    cap: float = 0.0
    capability: int = HOPPER

    @property
    def padded_dim(self) -> int:
        """Dimensions of a tile, a power of two; those past the head's are masked. At least 64: smaller tiles are not
        tuned, as no model of a size to serve has such small heads."""
        return max(64, 1 << (self.head_dim - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel's compile-time arguments and compiler options.

    programs: how many a multiprocessor is expected to hold at once; if more than one, the compiler is limited to each
    one's share of the registers.
    """

    constexprs: Mapping[str, float]
    num_warps: int
    num_stages: int
    programs: int = 1

    @property
    def max_registers(self) -> int | None:
        """Maximum registers of a thread; None leaves it to the compiler."""
        if self.programs == 1:
            return None
        share = _REGISTERS // (self.programs * self.num_warps * _WARP_THREADS)
        return min(share // _REGISTERS_GRANTED_AT_ONCE * _REGISTERS_GRANTED_AT_ONCE, _REGISTERS_OF_THREAD)

    @property
    def options(self) -> dict[str, float | None]:
        """The keyword arguments of a launch."""
        compiled = {"num_warps": self.num_warps, "num_stages": self.num_stages, "maxnreg": self.max_registers}
        return {**self.constexprs, **compiled}


@lru_cache
def decode_launch(shape: AttentionShape, most_queries: int) -> Launch:
    """The launch for rows of up to `most_queries` tokens. Packed rows that do not fit a tile take several, each of
    which reads KV."""
    tile = DECODE[shape.capability][shape.padded_dim, shape.kv_bytes]
    few = shape.group * most_queries <= FEW_QUERY_ROWS
    programs = tile.few_programs if few else tile.many_programs
    merging_warps = tile.num_warps if programs == 1 else 4
    merged_rows = _MERGED_NUMBERS * merging_warps // shape.padded_dim
    constexprs = _heads(shape) | {
        "CAP": shape.cap,
        "WINDOW": shape.window,
        "SPLIT": SPLIT_TOKENS,
        "QUERY_TILE": FEW_QUERY_ROWS if few else tile.many_query_rows,
        "KEY_TILE": tile.key_tile,
        "MERGED_ROWS": merged_rows,
        "MERGE_STAGES": 5 if merged_rows > 1 else 4,
    }
    return Launch(constexprs, tile.num_warps, tile.num_stages, programs)


@lru_cache
def extend_launch(shape: AttentionShape) -> Launch:
    tile = EXTEND[shape.capability][shape.padded_dim, shape.kv_bytes]
    constexprs = _heads(shape) | {
        "CAP": shape.cap,
        "WINDOW": shape.window,
        "QUERY_TILE": tile.query_tile,
        "KEY_TILE": tile.key_tile,
    }
    return Launch(constexprs, tile.num_warps, tile.num_stages)


def _heads(shape: AttentionShape) -> dict[str, float]:
    return {
        "KV_HEADS": shape.kv_heads,
        "GROUP": shape.group,
        "HEAD_DIM": shape.head_dim,
        "DIM": shape.padded_dim,
    }
