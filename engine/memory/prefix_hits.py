"""The cached prefix of a waiting request, kept from step to step while it waits."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from engine.memory.block_pool import BlockPool, Survey
from engine.memory.request_hashes import extend_hashes
from engine.request import Request

MATCHED_TOGETHER = 256
"""Blocks per lookup. Lookups beyond the first miss are wasted."""


@dataclass(slots=True)
class PrefixHits:
    """The cached blocks of a request's prefix. They are not pinned: `refresh` before use.

    A refresh costs the number of changes in the pool, not the number of blocks, as a blocked request is tried again in
    every step. `survey`: the reference counts of `all_blocks`, summarised. `windows`: of a model whose KV is in groups,
    for each group after the first, the cached blocks that the token after the prefix attends to.
    """

    blocks: list[int] = field(default_factory=list)
    survey: Survey = field(default_factory=Survey)
    windows: list[list[int]] = field(default_factory=list)
    state_blocks: int = 0
    """Of a model with recurrent states: leading blocks at whose end a state is saved, as of `states_seen`: the changes
    of the saved states, and the limit on blocks."""
    states_seen: tuple[int, int] | None = None
    _found: list[int] = field(default_factory=list)
    """The cached blocks in the first group, of which `blocks` are those that the other groups can follow."""
    _missing: bytes | None = None
    """The hash of a further group's block without which the prefix is shorter than `_found`."""
    _members: frozenset[int] | None = None
    _seen: int = -1

    @property
    def all_blocks(self) -> list[int]:
        """The cached blocks of all groups."""
        return [*self.blocks, *chain.from_iterable(self.windows)] if self.windows else self.blocks

    def refresh(self, pool: BlockPool, request: Request, limit: int) -> bool:
        """Find the cached blocks among the request's first `limit` blocks. Returns whether they may differ from those
        before: then, in a model whose KV is in groups, `narrow` them."""
        known = self._seen >= 0
        if known and len(self._found) <= limit and not self._has_changed(pool):
            more = _match(pool, request, len(self._found), limit)
            self._seen = pool.changes_total
            if not more and (self._missing is None or not pool.is_cached(self._missing)):
                return False
            self._found = self._found + more
        else:
            self._found = _match(pool, request, 0, limit)
        self.blocks, self.windows, self._missing = self._found, [], None
        self._members = frozenset(self.blocks) if known else None  # not needed if it is admitted at once
        self._seen = pool.changes_total
        self.survey = pool.survey(self.blocks)
        return True

    def narrow(self, pool: BlockPool, count: int, windows: list[list[int]], missing: bytes | None) -> None:
        """Reduce the prefix to its first `count` blocks, with these blocks of further groups. `missing`: the hash whose
        block would make it longer, if there is one."""
        self.blocks, self.windows, self._missing, self._members = self._found[:count], windows, missing, None
        self.survey = pool.survey(self.all_blocks)

    def update_survey(self, pool: BlockPool, request: Request) -> None:
        """Update `survey` after other requests' blocks were released. The blocks must still be cached."""
        if self._seen == pool.changes_total:
            return
        hashes = request.block_hashes[: len(self.blocks)]
        assert list(map(pool.hash_of, self.blocks)) == hashes, f"the hits of {request.id} are stale"
        self._seen = pool.changes_total
        self.survey = pool.survey(self.all_blocks)

    def _has_changed(self, pool: BlockPool) -> bool:
        """Whether one of the blocks was acquired, released or evicted since the last refresh."""
        changes = pool.changes_since(self._seen)
        if changes is None:
            return True
        if self._members is None:
            self._members = frozenset(chain(self._found, *self.windows))
        return not self._members.isdisjoint(changes)


def _match(pool: BlockPool, request: Request, first: int, limit: int) -> list[int]:
    """The cached blocks of the request from block number `first` on. Unknown hashes are computed as needed."""
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
