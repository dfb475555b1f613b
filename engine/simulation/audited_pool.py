"""A pool of KV blocks that checks what it allocates."""

from collections import Counter
from collections.abc import Callable, Sequence

from engine.memory import BlockPool


class AuditedPool(BlockPool):
    """A pool that checks each allocation: that it respects the reserves, and that it evicts the right blocks.

    `on_publish`: called with each block and hash that `match` finds from then on.
    """

    on_publish: Callable[[int, bytes], None] | None = None

    def publish(self, block: int, block_hash: bytes) -> None:
        super().publish(block, block_hash)
        if self.on_publish is not None and self._hash_of[block] == block_hash:
            self.on_publish(block, block_hash)

    def allocate(self, count: int, rank: int = 0, tenant: str = "", holder: int = 0) -> list[int]:
        blocks = super().allocate(count, rank, tenant, holder)
        self.audit_reserve(rank)
        return blocks

    def pledge(self, count: int, rank: int) -> None:
        super().pledge(count, rank)
        self.audit_reserve(rank)

    def _take(self, count: int, rank: int, tenant: str, holder: int) -> list[int]:
        before = list(zip(self._hash_of, self._rank_of, self._tenant_of, self._lists.list_of, strict=True))
        owned = Counter(self._tenant_of[block] for block in range(self.num_blocks) if self._has_content(block))
        blocks = super()._take(count, rank, tenant, holder)
        evicted = [before[block] for block in blocks if before[block][0] is not None]
        if not evicted:
            return blocks
        left = [block for block in range(self.num_blocks) if not self._references[block]]
        assert all(self._hash_of[block] is not None for block in left), "content is evicted, an empty block is not"
        for _, last_rank, owner, in_list in evicted:
            if owner != tenant:
                own_left = any(self._tenant_of[block] == tenant for block in left)
                over = owned[tenant] >= self._tenant_blocks
                assert not (over and own_left), f"{tenant!r} is over its share and evicts a block of {owner!r}"
                protected = in_list == self._lists.protected(last_rank)
                lower_left = any(self._rank_of[block] > last_rank for block in left)
                assert not (protected and lower_left), "a class's cache is evicted before that of one below"
        return blocks

    def acquire(self, blocks: Sequence[int], rank: int = 0, holder: int = 0, pledged: int = 0) -> None:  # type: ignore[override]
        super().acquire(blocks, rank, holder, pledged)
        if not pledged:
            self.audit_reserve(rank)

    def audit_reserve(self, rank: int) -> None:
        """Assert the reservation inequality for a rank that has just taken blocks."""
        held, free = self._held(), sum(not count for count in self._references) - sum(self._pledged)
        kept = sum(max(0, self.reservation.reserved[above] - held[above]) for above in range(rank))
        assert free >= kept, f"rank {rank} took blocks that are kept for a class above: {free} free, {kept} kept"

    def _held(self) -> Counter[int]:
        """By rank: the blocks that count for it, which no lower rank holds, and those pledged to it."""
        held = Counter(dict(enumerate(self._pledged)))
        for block in range(self.num_blocks):
            holding = [rank for rank in self._ranks if self._holders[rank][block]]
            if holding:
                held[max(holding)] += 1
        return held

    def _has_content(self, block: int) -> bool:
        return self._references[block] > 0 or self._hash_of[block] is not None
