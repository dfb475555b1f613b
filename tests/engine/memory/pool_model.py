"""Reference model of a pool, with plain lists: the blocks that each rank may take, and the order of eviction."""

from collections import Counter
from collections.abc import Iterable, Sequence

import pytest

from engine.memory import BlockPool, CapacityError


class ModelledPool(BlockPool):
    """A pool that is compared with the model at each call.

    The model has, of each block, the references by rank, the tenant and the rank that was the last to hold it; and of
    the free blocks with content three views: `common`, oldest first; `protected` by rank, oldest first; and `own` by
    tenant, least recently released first. Its rules:

    - A rank may take n blocks while free - n >= what is unused of the reserves above it. A block that several ranks
      hold counts for the lowest.
    - An empty block goes first. Then, where the tenant has its share, its own least recently released one. Then the
      oldest common one; then the oldest protected one, of the lowest rank that has any.
    - What is pledged is held, and not taken before it is redeemed.
    - What a rank with a reserve releases is protected, up to what is unused of the reserve: the oldest beyond that
      become common, as if they had been released now.
    """

    def reserve(self, reserved_blocks: Sequence[int], tenant_blocks: int) -> None:
        super().reserve(reserved_blocks, tenant_blocks)
        self.reserved = tuple(reserved_blocks)
        self.share = tenant_blocks
        self.holders: list[Counter[int]] = [Counter() for _ in range(self.num_blocks)]
        self.owner = [""] * self.num_blocks
        self.common: list[int] = []
        self.protected: list[list[int]] = [[] for _ in reserved_blocks]
        self.own: dict[str, list[int]] = {}
        self.evicted = 0
        self.pledged = [0] * len(reserved_blocks)

    def free(self) -> list[int]:
        return [block for block in range(self.num_blocks) if not self.holders[block]]

    def unused(self, rank: int, holders: Sequence[Counter[int]] | None = None) -> int:
        held = sum(max(each) == rank for each in holders or self.holders if each)
        return max(0, self.reserved[rank] - held - self.pledged[rank])

    def may_take(self, rank: int, hits: Sequence[int] = ()) -> int:
        """How many blocks the rank may take once it has acquired the hits. Can be negative."""
        holders = [each.copy() for each in self.holders]
        for block in hits:
            holders[block][rank] += 1
        free = sum(not each for each in holders) - sum(self.pledged)
        return free - sum(self.unused(above, holders) for above in range(rank))

    def acquire(self, blocks: Iterable[int], rank: int = 0, holder: int = 0, pledged: int = 0) -> None:
        blocks = list(blocks)
        super().acquire(blocks, rank, holder, pledged)
        for block in blocks:
            if not self.holders[block]:
                self._leave(block)
            self.holders[block][rank] += 1
        self._grow_old(rank)

    def allocate(self, count: int, rank: int = 0, tenant: str = "", holder: int = 0) -> list[int]:
        if count > self.may_take(rank):
            with pytest.raises(CapacityError):
                super().allocate(count, rank, tenant, holder)
            raise CapacityError
        return super().allocate(count, rank, tenant, holder)

    def pledge(self, count: int, rank: int) -> None:
        assert count <= self.may_take(rank)
        super().pledge(count, rank)
        self.pledged[rank] += count
        self._grow_old(rank)

    def unpledge(self, count: int, rank: int) -> None:
        super().unpledge(count, rank)
        self.pledged[rank] -= count

    def redeem(self, count: int, rank: int, tenant: str, holder: int) -> list[int]:
        self.pledged[rank] -= count
        return super().redeem(count, rank, tenant, holder)

    def _take(self, count: int, rank: int, tenant: str, holder: int) -> list[int]:
        with_content = {block for block in self.free() if self.hash_of(block) is not None}
        blocks = super()._take(count, rank, tenant, holder)
        for block in blocks:
            empty = [each for each in self.free() if each not in with_content]
            if empty:
                assert block in empty, f"content is evicted from {block}, and {empty} are empty"
            else:
                first = self._first_to_go(tenant, with_content)
                assert block == first, f"{block} is evicted, and it is the turn of {first}"
                self._leave(block)
                with_content.remove(block)
                self.evicted += 1
            self.holders[block][rank] += 1
            self.owner[block] = tenant
        self._grow_old(rank)
        return blocks

    def release(self, blocks: Iterable[int], rank: int = 0, holder: int = 0) -> None:
        blocks = list(blocks)
        with_content = [self.hash_of(block) is not None for block in blocks]
        super().release(blocks, rank, holder)
        for block, has_content in zip(blocks, with_content, strict=True):
            counted_for = max(self.holders[block])
            self.holders[block] -= Counter({rank: 1})
            if not self.holders[block]:
                if has_content:
                    (self.protected[rank] if self.reserved[rank] else self.common).append(block)
                    self.own.setdefault(self.owner[block], []).append(block)
            elif max(self.holders[block]) != counted_for:
                self._grow_old(max(self.holders[block]))
        self._grow_old(rank)

    def _first_to_go(self, tenant: str, with_content: set[int]) -> int:
        owned = sum(
            self.owner[block] == tenant and (bool(self.holders[block]) or block in with_content)
            for block in range(self.num_blocks)
        )
        if owned >= self.share and self.own.get(tenant):
            return self.own[tenant][0]
        return next(blocks[0] for blocks in (self.common, *reversed(self.protected)) if blocks)

    def _leave(self, block: int) -> None:
        for blocks in (self.common, *self.protected):
            if block in blocks:
                blocks.remove(block)
        self.own[self.owner[block]].remove(block)

    def _grow_old(self, rank: int) -> None:
        while len(self.protected[rank]) > self.unused(rank):
            self.common.append(self.protected[rank].pop(0))
