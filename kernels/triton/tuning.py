"""Launch parameters of the attention kernels on a Hopper GPU: tiles, warps and stages as data.

`num_stages` counts the stages of the loop over keys. Block ids take two before keys and values get any: 5 gives each of
those two buffers, 3 only one.

Numbers of programs were found by compiling with Triton 3.6 and 3.7: `python -m kernels.triton.report` shows what fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernels.triton.plan import SPLIT_TOKENS

FEW_QUERY_ROWS, MANY_QUERY_ROWS = 16, 32
"""Packed rows of a decode kernel: the smallest tile of the tensor cores, and that of rows with drafts."""

MAX_HEAD_DIM = 512

_MERGED_NUMBERS = 512
"""Numbers of a split that are merged at a time: 16 bytes a thread of four warps. Several splits are in flight, and none
takes many registers."""

# Of a multiprocessor, and of a thread at the most: compute capability 9.0.
_REGISTERS, _REGISTERS_OF_THREAD = 64 * 1024, 255
_REGISTERS_GRANTED_AT_ONCE = 8
_WARP_THREADS = 32


@dataclass(frozen=True, slots=True)
class DecodeTile:
    """A decode kernel: tokens of KV at a time, warps and stages, the same for few and many packed rows.

    They determine how sums are rounded, and a row's result must not depend on whether its neighbours have drafts.
    few_programs, many_programs: programs that share a multiprocessor; no more than it holds, or the last would start
    when the others are done. The compiler is limited to the registers of each program's share, and spills none: more
    programs have more loads in flight, and one's last tile of a split overlaps with another's first.
    """

    key_tile: int
    num_warps: int
    num_stages: int
    few_programs: int
    many_programs: int


@dataclass(frozen=True, slots=True)
class ExtendTile:
    """An extend kernel: packed rows, tokens of KV at a time, warps and stages."""

    query_tile: int
    key_tile: int
    num_warps: int
    num_stages: int


# Both by (padded head dimension, bytes of a stored number).
DECODE = {
    (64, 1): DecodeTile(64, 4, 5, 4, 4),
    (64, 2): DecodeTile(64, 4, 5, 4, 3),
    (64, 4): DecodeTile(32, 4, 5, 3, 1),
    (128, 1): DecodeTile(64, 4, 5, 3, 2),
    (128, 2): DecodeTile(64, 4, 5, 3, 2),
    (128, 4): DecodeTile(32, 4, 5, 1, 1),
    (256, 1): DecodeTile(32, 4, 5, 3, 2),
    (256, 2): DecodeTile(32, 4, 5, 3, 2),
    (256, 4): DecodeTile(16, 8, 5, 1, 1),
    (512, 1): DecodeTile(16, 8, 5, 2, 1),
    (512, 2): DecodeTile(16, 8, 5, 2, 1),
    (512, 4): DecodeTile(16, 8, 5, 1, 1),
}
EXTEND = {
    (64, 1): ExtendTile(128, 64, 8, 5),
    (64, 2): ExtendTile(128, 64, 4, 5),  # Triton 3.6 makes products of 8 warps wait for one another here
    (64, 4): ExtendTile(32, 16, 4, 5),
    (128, 1): ExtendTile(128, 64, 8, 5),
    (128, 2): ExtendTile(128, 64, 8, 5),
    (128, 4): ExtendTile(32, 16, 8, 5),
    (256, 1): ExtendTile(64, 32, 8, 5),
    (256, 2): ExtendTile(128, 32, 8, 5),
    (256, 4): ExtendTile(16, 16, 8, 5),
    (512, 1): ExtendTile(32, 32, 8, 5),  # 64 rows of queries, which warp groups need, would spill
    (512, 2): ExtendTile(64, 16, 8, 5),  # three tiles each of 32 keys and values would not fit a program
    (512, 4): ExtendTile(16, 16, 8, 5),
}


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The compile-time constants of a layer's attention.

    group: query heads that share a KV head. window: sliding window in tokens, 0 for none. kv_bytes: bytes of a stored
    number. cap: softcap of scores, 0 for none.
    """

    kv_heads: int
    group: int
    head_dim: int
    window: int
    kv_bytes: int
    cap: float = 0.0

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
    tile = DECODE[shape.padded_dim, shape.kv_bytes]
    few = shape.group * most_queries <= FEW_QUERY_ROWS
    query_tile = FEW_QUERY_ROWS if few else MANY_QUERY_ROWS
    merged_rows = _MERGED_NUMBERS // shape.padded_dim
    constexprs = _heads(shape) | {
        "CAP": shape.cap,
        "WINDOW": shape.window,
        "SPLIT": SPLIT_TOKENS,
        "QUERY_TILE": query_tile,
        "KEY_TILE": tile.key_tile,
        "MERGED_ROWS": merged_rows,
        "MERGE_STAGES": 5 if merged_rows > 1 else 4,
    }
    programs = tile.few_programs if few else tile.many_programs
    return Launch(constexprs, tile.num_warps, tile.num_stages, programs)


@lru_cache
def extend_launch(shape: AttentionShape) -> Launch:
    tile = EXTEND[shape.padded_dim, shape.kv_bytes]
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
