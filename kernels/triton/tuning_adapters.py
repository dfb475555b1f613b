"""Launch parameters of the products with adapters. Found by compiling alone."""

from dataclasses import dataclass

RANKS = (8, 16, 32, 64)
"""Ranks of the slots. An adapter is padded to the next one."""
_LEAST_RANK_TILE = 16
"""Of a matrix product's side."""

SPLIT_INPUTS = 512
"""Inputs of a split. A constant, as it determines how results are rounded."""
TOKEN_TILE = 256
"""Tokens of a program that finds their adapters."""
_SHRINK_BYTES = 256
"""Of a line of an adapter at a time."""
_FEW_TOKENS = 256
"""Tokens up to which most tiles would be all but empty if they were large."""


@dataclass(frozen=True, slots=True)
class AdapterTile:
    """Tokens of a tile, outputs of a program, warps and stages."""

    row_tile: int
    output_tile: int
    shrink_warps: int
    shrink_stages: int
    expand_warps: int


FEW_TOKENS = AdapterTile(16, 128, 4, 4, 4)
MANY_TOKENS = AdapterTile(64, 128, 4, 3, 4)


def adapter_tile(tokens: int) -> AdapterTile:
    """The tile of a step."""
    return FEW_TOKENS if tokens <= _FEW_TOKENS else MANY_TOKENS


def rank_bucket(rank: int) -> int:
    """The rank that an adapter is padded to.

    Raises:
        ValueError: it is larger than any.
    """
    if rank > RANKS[-1]:
        raise ValueError(f"a GPU takes adapters of ranks up to {RANKS[-1]}, not {rank}; use device cpu")
    return next(each for each in RANKS if each >= rank)


def rank_tile(rank: int) -> int:
    """Ranks of a program."""
    return max(_LEAST_RANK_TILE, rank)


def shrink_inputs(number_bytes: int) -> int:
    """Inputs of a step of a `down` product."""
    return _SHRINK_BYTES // number_bytes
