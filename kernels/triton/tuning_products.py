"""Launch parameters of the products with quantised weights and experts: those of Hopper, and what differs elsewhere.

Found by compiling alone: `python -m kernels.triton.report` shows registers, shared memory and loads of each.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

_PROGRAMS = 264
"""Programs that a product of few rows is split into: two for each multiprocessor of an H100."""
_LEAST_SPLIT_TILES = 4
"""Tiles of a split, so that its loads are in flight for most of its time."""

MOST_PARTIAL_ROWS = 128
"""Rows up to which splits have programs of their own."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows and outputs of a program, warps and stages.

    max_registers: of a thread; None leaves it to the assembler, which may spill to fit a second program.
    """

    row_tile: int
    output_tile: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None

    @property
    def constexprs(self) -> dict[str, int]:
        return {"ROW_TILE": self.row_tile, "OUTPUT_TILE": self.output_tile}

    @property
    def options(self) -> dict[str, int | None]:
        """The keyword arguments of a launch."""
        compiled = {"num_warps": self.num_warps, "num_stages": self.num_stages, "maxnreg": self.max_registers}
        return {**self.constexprs, **compiled}


GROUPED_FEW = ProductTile(32, 64, 4, 4)
"""Inputs of 16 rows would be read 8 bytes a thread."""
GROUPED_MANY = ProductTile(128, 64, 8, 3)
ROUNDED_FEW = ProductTile(32, 64, 4, 5)
ROUNDED_MANY = {False: ProductTile(128, 128, 8, 4), True: ProductTile(128, 64, 8, 4)}
"""By whether scales are of groups: their scaled sums take the registers of half a tile."""

FEW_ROWS = ProductTile(16, 64, 4, 4)
"""Of the products with plain weights that cuBLAS is not given: two programs of a multiprocessor have 96 KiB of weights
in flight, three times what the memory of an H200 needs."""
LEAST_FEW_ROWS_NUMBERS = 1 << 20
"""Numbers of a weight from which few rows are not given to cuBLAS. Smaller ones are read within a launch's own time."""
_FEW_ROWS_BYTES = 256
"""Of a line of a weight at a time."""

FEW_TOKENS, MANY_TOKENS = 32, 128
"""Assignments of a tile of one expert."""

EXPERTS = {
    ("plain", FEW_TOKENS): ProductTile(FEW_TOKENS, 64, 4, 4),
    ("plain", MANY_TOKENS): ProductTile(MANY_TOKENS, 128, 8, 4),
    ("grouped", FEW_TOKENS): GROUPED_FEW,
    ("grouped", MANY_TOKENS): GROUPED_MANY,
    ("rounded", FEW_TOKENS): ROUNDED_FEW,
    ("rounded", MANY_TOKENS): ProductTile(MANY_TOKENS, 64, 4, 4),
}
"""By kind of weight and assignments of a tile."""

_ONE_WARP_PRODUCTS: Mapping[tuple[str, ProductTile], ProductTile] = {
    ("grouped", GROUPED_FEW): ProductTile(32, 64, 4, 4, 255),
    ("grouped", GROUPED_MANY): ProductTile(128, 32, 8, 3, 255),
    ("e4m3", ROUNDED_MANY[False]): ROUNDED_MANY[True],
    ("i8", ROUNDED_MANY[False]): ROUNDED_MANY[True],
}
"""Of GPUs whose matrix products are of single warps, which hold the left side in registers."""
_SMALL: Mapping[tuple[str, ProductTile], ProductTile] = {
    **_ONE_WARP_PRODUCTS,
    ("plain", FEW_ROWS): ProductTile(16, 64, 4, 3),
}
"""Of those with 99 KiB of shared memory, which two programs share."""
_ELSEWHERE: Mapping[int, Mapping[tuple[str, ProductTile], ProductTile]] = {
    80: _ONE_WARP_PRODUCTS,
    86: _SMALL,
    89: _SMALL,
    100: {("i8", ROUNDED_MANY[False]): ROUNDED_MANY[True]},
    120: _SMALL,
}
"""By capability, kind of weight and Hopper's tile, one that does not spill."""

BY_HEAD_INPUTS = 64
"""Inputs of a step of a product by head."""
_BY_HEAD_FEW, _BY_HEAD_MANY = EXPERTS["plain", FEW_TOKENS], EXPERTS["plain", MANY_TOKENS]


def tile_on(capability: int, kind: str, tile: ProductTile) -> ProductTile:
    """The tile of a GPU where Hopper's is `tile`, for weights that are "plain", "grouped", "e4m3" or "i8"."""
    return _ELSEWHERE.get(capability, {}).get((kind, tile), tile)


def kind_of_codes(dtype: torch.dtype) -> str:
    """The kind of a rounded weight."""
    return "i8" if dtype == torch.int8 else "e4m3"


def split_tiles(tiles: int, out_features: int) -> int:
    """Tiles of a split: a function of the weight's shape alone."""
    programs = -(-out_features // GROUPED_FEW.output_tile)
    splits = max(1, min(_PROGRAMS // programs, tiles // _LEAST_SPLIT_TILES))
    return -(-tiles // splits)


def few_rows_inputs(number_bytes: int) -> int:
    """Inputs of a tile in products of few rows with plain weights."""
    return _FEW_ROWS_BYTES // number_bytes


def expert_launch(assignments: int, experts: int) -> int:
    """Assignments of a tile, by their number for each expert."""
    return FEW_TOKENS if assignments <= FEW_TOKENS * experts else MANY_TOKENS


def by_head_launch(rows: int) -> ProductTile:
    """The tile of a product by head."""
    return _BY_HEAD_FEW if rows <= _BY_HEAD_FEW.row_tile else _BY_HEAD_MANY
