"""The cached blocks that a waiting request's tokens begin with, kept from step to step while it waits."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.memory.block_pool import BlockPool, Survey
from engine.memory.request_hashes import extend_hashes
from engine.request import Request

MATCHED_TOGETHER = 256
"""Blocks: what is looked up beyond a miss is for nothing."""


@dataclass(slots=True)
class PrefixHits:
    """`blocks` pins nothing: `refresh` before use. What it costs is what has changed, and not what is known: a request
    that is held back is asked in every step.

    `survey` is how the blocks stand.
    """

    blocks: list[int] = field(default_factory=list)
    survey: Survey = field(default_factory=Survey)
    _members: frozenset[int] | None = None
    _seen: int = -1

    def refresh(self, pool: BlockPool, request: Request, limit: int) -> None:
        """Find what the pool has of the request's first `limit` blocks now."""
        known = self._seen >= 0
        if known and not self._has_changed(pool):
            more = _match(pool, request, len(self.blocks), limit)
            self._seen = pool.changes_total
            if not more:
                return
            self.blocks += more
        else:
            self.blocks = _match(pool, request, 0, limit)
        self._members = frozenset(self.blocks) if known else None  # it may well be admitted at once
        self._seen = pool.changes_total
        self.survey = pool.survey(self.blocks)

    def _has_changed(self, pool: BlockPool) -> bool:
        """Is one of the blocks among those that were taken, given back or evicted since?"""
        changes = pool.changes_since(self._seen)
        if changes is None:
            return True
        if self._members is None:
            self._members = frozenset(self.blocks)
        return not self._members.isdisjoint(changes)


def _match(pool: BlockPool, request: Request, first: int, limit: int) -> list[int]:
    """The cached blocks from block number `first` of the request on; hashes not known yet are computed as needed."""
    blocks: list[int] = []
    while first < limit:
        if first == len(request.block_hashes):
            extend_hashes(request, first + 1)
        hashes: Sequence[bytes] = request.block_hashes[first : min(first + MATCHED_TOGETHER, limit)]
        found = pool.match(hashes)
        blocks += found
        if len(found) < len(hashes):
            break
        first += len(hashes)
    return blocks
