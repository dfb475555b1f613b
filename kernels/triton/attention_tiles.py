"""Tiles of the attention kernels by compute capability: those of Hopper, and what differs on other GPUs.

Hopper's products of warp groups read queries from shared memory. Elsewhere those of single warps hold them in
registers, which leaves less for sums; and GPUs for desktops and inference have less than half the shared memory. What
a token's numbers are added up in depends on these tiles, so on the GPU and not on the step.
"""

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

from kernels.triton.capability import HOPPER

FEW_QUERY_ROWS, MANY_QUERY_ROWS = 16, 32
"""Packed rows of a decode kernel: the smallest tile of the tensor cores, and that of rows with drafts."""


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
    many_query_rows: int = MANY_QUERY_ROWS


@dataclass(frozen=True, slots=True)
class ExtendTile:
    """An extend kernel: packed rows, tokens of KV at a time, warps and stages."""

    query_tile: int
    key_tile: int
    num_warps: int
    num_stages: int


Key = tuple[int, int]
"""Padded head dimension, and bytes of a stored number."""

_HOPPER_DECODE: Mapping[Key, DecodeTile] = {
    (64, 1): DecodeTile(64, 4, 5, 4, 4),
    (64, 2): DecodeTile(64, 4, 5, 4, 3),
    (64, 4): DecodeTile(32, 4, 5, 3, 1),
    (128, 1): DecodeTile(64, 4, 5, 3, 2),
    (128, 2): DecodeTile(64, 4, 5, 3, 2),
    (128, 4): DecodeTile(32, 4, 5, 1, 1),
    (256, 1): DecodeTile(32, 4, 5, 3, 2),
    (256, 2): DecodeTile(32, 4, 5, 3, 2),
    (256, 4): DecodeTile(16, 8, 5, 1, 1),
    (512, 1): DecodeTile(16, 8, 5, 1, 1),
    (512, 2): DecodeTile(16, 8, 5, 2, 1),
    (512, 4): DecodeTile(16, 8, 5, 1, 1),
}
_HOPPER_EXTEND: Mapping[Key, ExtendTile] = {
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

_SMALL_DECODE: Mapping[Key, DecodeTile] = {
    (64, 1): DecodeTile(32, 4, 5, 4, 3),
    (64, 2): DecodeTile(32, 4, 5, 4, 3),
    (64, 4): DecodeTile(16, 4, 5, 3, 1),
    (128, 1): DecodeTile(32, 4, 5, 3, 2),
    (128, 2): DecodeTile(32, 4, 5, 2, 2),
    (128, 4): DecodeTile(16, 4, 5, 1, 1),
    (256, 1): DecodeTile(16, 4, 5, 2, 1),
    (256, 2): DecodeTile(16, 4, 5, 2, 1),
    (256, 4): DecodeTile(16, 8, 5, 1, 1),
    (512, 1): DecodeTile(16, 8, 5, 1, 1),
    (512, 2): DecodeTile(16, 8, 5, 1, 1),
    (512, 4): DecodeTile(16, 8, 3, 1, 1, FEW_QUERY_ROWS),
}
_SMALL_EXTEND: Mapping[Key, ExtendTile] = {
    (64, 1): ExtendTile(128, 64, 8, 5),
    (64, 2): ExtendTile(128, 64, 8, 5),
    (64, 4): ExtendTile(32, 16, 4, 5),
    (128, 1): ExtendTile(64, 32, 8, 5),
    (128, 2): ExtendTile(128, 64, 8, 5),
    (128, 4): ExtendTile(32, 16, 8, 5),
    (256, 1): ExtendTile(32, 32, 8, 5),
    (256, 2): ExtendTile(64, 16, 8, 5),
    (256, 4): ExtendTile(16, 16, 8, 5),
    (512, 1): ExtendTile(32, 16, 8, 5),
    (512, 2): ExtendTile(32, 16, 8, 5),
    (512, 4): ExtendTile(16, 16, 8, 3),
}
"""99 KiB of shared memory for a program and products of single warps: capabilities 8.6, 8.9 and 12.0."""

_AMPERE_DECODE: Mapping[Key, DecodeTile] = {
    **_HOPPER_DECODE,
    (64, 1): DecodeTile(64, 4, 5, 4, 3),
    (128, 1): DecodeTile(64, 4, 5, 2, 2),
    (128, 2): DecodeTile(64, 4, 5, 2, 2),
    (256, 1): DecodeTile(32, 4, 5, 2, 1),
    (256, 2): DecodeTile(32, 4, 5, 2, 1),
    (512, 2): DecodeTile(16, 8, 5, 1, 1),
    (512, 4): DecodeTile(16, 8, 5, 1, 1, FEW_QUERY_ROWS),
}
_AMPERE_EXTEND: Mapping[Key, ExtendTile] = {
    **_HOPPER_EXTEND,
    (64, 2): ExtendTile(128, 64, 8, 5),
    (128, 1): ExtendTile(128, 32, 8, 5),
    (128, 2): ExtendTile(128, 32, 8, 5),
    (256, 1): ExtendTile(64, 16, 8, 5),
    (256, 2): ExtendTile(64, 32, 8, 5),
    (512, 2): ExtendTile(32, 16, 8, 5),
}
"""163 KiB and products of single warps: capability 8.0."""

_BLACKWELL_EXTEND: Mapping[Key, ExtendTile] = {**_HOPPER_EXTEND, (64, 1): ExtendTile(64, 64, 4, 5)}
"""Hopper's shared memory, and tensor memory for the sums of products: capability 10.0."""

DECODE: Mapping[int, MutableMapping[Key, DecodeTile]] = {
    80: {**_AMPERE_DECODE},
    86: {**_SMALL_DECODE},
    89: {**_SMALL_DECODE},
    HOPPER: {**_HOPPER_DECODE},
    100: {**_HOPPER_DECODE},
    120: {**_SMALL_DECODE},
}
EXTEND: Mapping[int, MutableMapping[Key, ExtendTile]] = {
    80: {**_AMPERE_EXTEND},
    86: {**_SMALL_EXTEND},
    89: {**_SMALL_EXTEND},
    HOPPER: {**_HOPPER_EXTEND},
    100: {**_BLACKWELL_EXTEND},
    120: {**_SMALL_EXTEND},
}
