"""Launch parameters of attention over latents.

Found by compiling alone: `python -m kernels.triton.report latent` shows registers and shared memory. Scores are
products of single warps: warp groups would need 64 tokens of KV at a time, of which no two tiles fit a program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from kernels.triton.attention_tiles import FEW_QUERY_ROWS
from kernels.triton.capability import HOPPER
from kernels.triton.plan import SPLIT_TOKENS
from kernels.triton.tiles import tile_above
from kernels.triton.tuning import Launch

_LEAST_TILE = 16
"""The least side of a matrix product."""

_WARPS = 8
_STAGES = 5
"""As of other attention: two of block ids, two of keys."""

_MERGED_SPLITS = 8

JOINED_SPLITS = 2
"""Splits of a plan that are one here: the partial result of a split has as many numbers as some of its keys, times the
heads, and is written and read in float32."""
_SPLIT_TOKENS = JOINED_SPLITS * SPLIT_TOKENS


@dataclass(frozen=True, slots=True)
class LatentTile:
    """Tokens of KV at a time; packed rows of queries of a decode row that has many, and of a chunk; programs that share
    a multiprocessor if a decode row has few."""

    key_tile: int
    many_query_rows: int
    extend_query_rows: int
    few_programs: int


_HOPPER: Mapping[int, LatentTile] = {2: LatentTile(32, 32, 64, 2), 4: LatentTile(16, 16, 16, 1)}
_ONE_WARP_PRODUCTS: Mapping[int, LatentTile] = {2: LatentTile(32, 16, 16, 1), 4: LatentTile(16, 16, 16, 1)}
LATENTS: Mapping[int, Mapping[int, LatentTile]] = {
    80: _ONE_WARP_PRODUCTS,
    86: _ONE_WARP_PRODUCTS,
    89: _ONE_WARP_PRODUCTS,
    HOPPER: _HOPPER,
    100: _HOPPER,
    120: _ONE_WARP_PRODUCTS,
}
"""By capability, and bytes of a stored number."""


@dataclass(frozen=True, slots=True)
class LatentShape:
    """The compile-time constants of a layer's attention over latents.

    heads: query heads, which share a key. rotated, rank: dimensions of a stored key, as in
    `engine.models.latent.LatentConfig`. kv_bytes: bytes of a stored number. capability: of the GPU, as in
    `kernels.triton.tuning.AttentionShape`.
    """

    heads: int
    rotated: int
    rank: int
    kv_bytes: int
    capability: int = HOPPER

    @property
    def rank_tile(self) -> int:
        """Dimensions of a tile of latents, a power of two; those past the latent's are masked."""
        return max(_LEAST_TILE, tile_above(self.rank))

    @property
    def tile(self) -> LatentTile:
        return LATENTS[self.capability][self.kv_bytes]

    @property
    def constexprs(self) -> dict[str, float]:
        """Of both kernels that read KV."""
        return {
            "HEADS": self.heads,
            "ROTATED": self.rotated,
            "RANK": self.rank,
            "ROTATED_TILE": max(_LEAST_TILE, tile_above(self.rotated)),
            "RANK_TILE": self.rank_tile,
            "KEY_TILE": self.tile.key_tile,
        }


@lru_cache
def latent_decode_launch(shape: LatentShape, most_queries: int) -> Launch:
    """The launch for rows of up to `most_queries` tokens. Packed rows that do not fit a tile take several, which read
    the same KV at about the same time."""
    tile = shape.tile
    few = shape.heads * most_queries <= FEW_QUERY_ROWS
    own = {
        "JOINED": JOINED_SPLITS,
        "SPLIT": _SPLIT_TOKENS,
        "QUERY_TILE": FEW_QUERY_ROWS if few else tile.many_query_rows,
    }
    return Launch(shape.constexprs | own, _WARPS, _STAGES, tile.few_programs if few else 1)


@lru_cache
def latent_extend_launch(shape: LatentShape) -> Launch:
    own = {"QUERY_TILE": shape.tile.extend_query_rows}
    return Launch(shape.constexprs | own, _WARPS, _STAGES)


@lru_cache
def latent_merge_launch(shape: LatentShape) -> Launch:
    constexprs = {
        "HEADS": shape.heads,
        "RANK": shape.rank,
        "RANK_TILE": shape.rank_tile,
        "SPLIT": _SPLIT_TOKENS,
        "SPLITS": _MERGED_SPLITS,
        "JOINED": JOINED_SPLITS,
    }
    return Launch(constexprs, num_warps=4, num_stages=1)
