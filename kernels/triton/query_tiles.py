"""Tiles of packed rows of queries (see `attention_step`), numbered row after row through a step's chunks.

A tile lies at a multiple of its size in its own row, so that a chunk's results do not depend on the chunks before it.
Numbers need no table: row r's begin at (packed rows before it) // size + r, which leaves it as many as it has tiles, or
one more, which is unused.
"""

import triton
import triton.language as tl


def query_tiles(tokens: int, rows: int, group: int, tile: int) -> int:
    """Numbers of tiles for `tokens` tokens in `rows` rows: at most one a row more than there are tiles.

    group: packed rows of a token. tile: packed rows of a tile.
    """
    return tokens * group // tile + rows


@triton.jit
def _first_number(row, query_starts, first_row, GROUP: tl.constexpr, TILE: tl.constexpr):
    before = tl.load(query_starts + first_row + row) - tl.load(query_starts + first_row)
    return before * GROUP // TILE + row


@triton.jit
def row_and_tile_of(number, query_starts, first_row, rows, GROUP: tl.constexpr, TILE: tl.constexpr):
    """The row of a tile, of `rows` rows from first_row on, and the tile's number in it, which may be past its last."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        begun = _first_number(middle, query_starts, first_row, GROUP, TILE) <= number
        low = tl.where(begun, middle, low)
        high = tl.where(begun, high, middle)
    return first_row + low, number - _first_number(low, query_starts, first_row, GROUP, TILE)
