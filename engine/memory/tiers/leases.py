"""Blocks of the pool that are lent to the copier."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from engine.memory.block_pool import BlockPool


class _Lease(NamedTuple):
    """Blocks of one rank, under one holder's number, the beginning of a prompt before its end."""

    blocks: list[int]
    rank: int


class Leases:
    """References of the copier: a block with one is neither evicted nor overwritten.

    Holders have negative numbers here, those of requests positive ones.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._numbers = count(-1, -1)
        self._leases: dict[int, _Lease] = {}
        self._lent_to_write: set[int] = set()
        """The holders of blocks that are to be written."""

    @property
    def held(self) -> Mapping[int, Sequence[int]]:
        """The blocks of each holder."""
        return {holder: lease.blocks for holder, lease in self._leases.items()}

    @property
    def to_write(self) -> int:
        """Blocks that are lent until their bytes are copied: they are back before the disk is touched."""
        return sum(len(self._leases[holder].blocks) for holder in self._lent_to_write)

    @property
    def spare_blocks(self) -> int:
        """Free blocks that may be lent to be written: half of those that no class has a reserve on."""
        reservation = self._pool.reservation
        return max(0, self._pool.free_blocks - reservation.unused_above(len(reservation.reserved))) // 2

    def lend(self, blocks: Sequence[int]) -> list[int]:
        """Lend free cached blocks to be written, the end of a prompt before its beginning. Returns the holders'
        numbers."""
        by_rank: dict[int, list[int]] = {}
        for block in reversed(blocks):
            assert not self._pool.references(block), f"block {block} is lent and in use"
            by_rank.setdefault(self._pool.rank_of(block), []).append(block)
        holders = []
        for rank, of_rank in by_rank.items():
            holder = next(self._numbers)
            self._pool.acquire(of_rank, rank, holder)
            self._leases[holder] = _Lease(of_rank, rank)
            self._lent_to_write.add(holder)
            holders.append(holder)
        return holders

    def take(self, hits: Sequence[int], count: int, rank: int, tenant: str) -> tuple[int, list[int]]:
        """Hold cached blocks, and allocate others to be filled. Returns the holder's number and the new blocks."""
        holder = next(self._numbers)
        self._pool.acquire(hits, rank, holder)
        blocks = self._pool.allocate(count, rank, tenant, holder)
        self._leases[holder] = _Lease([*hits, *blocks], rank)
        return holder, blocks

    def end(self, holder: int, *, reuse_first: bool = False) -> None:
        """Release the blocks of a lease. `reuse_first`: those that become free are evicted before all others."""
        blocks, rank = self._leases.pop(holder)
        self._lent_to_write.discard(holder)
        if reuse_first:
            self._pool.release(blocks, rank, holder, reuse_first=True)
        else:
            self._pool.release(reversed(blocks), rank, holder)
