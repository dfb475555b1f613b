"""Launch parameters of the products with quantised weights and experts on a Hopper GPU.

Found by compiling alone: `python -m kernels.triton.report` shows registers, shared memory and loads of each.
"""

from dataclasses import dataclass

_PROGRAMS = 264
"""Programs that a product of few rows is split into: two for each multiprocessor of an H100."""
_LEAST_SPLIT_TILES = 4
"""Tiles of a split, so that its loads are in flight for most of its time."""

MOST_PARTIAL_ROWS = 128
"""Rows up to which splits have programs of their own."""


@dataclass(frozen=True, slots=True)
class ProductTile:
    """Rows and outputs of a program, warps and stages."""

    row_tile: int
    output_tile: int
    num_warps: int
    num_stages: int

    @property
    def constexprs(self) -> dict[str, int]:
        return {"ROW_TILE": self.row_tile, "OUTPUT_TILE": self.output_tile}

    @property
    def options(self) -> dict[str, int]:
        """The keyword arguments of a launch."""
        return self.constexprs | {"num_warps": self.num_warps, "num_stages": self.num_stages}


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

BY_HEAD_INPUTS = 64
"""Inputs of a step of a product by head."""
_BY_HEAD_FEW, _BY_HEAD_MANY = EXPERTS["plain", FEW_TOKENS], EXPERTS["plain", MANY_TOKENS]


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
