"""The blocks of KV memory: ids, reference counts, free lists, and the index of cached blocks."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import cast

from engine.memory.free_blocks import COMMON, EMPTY, FreeBlocks
from engine.memory.prefix_journal import PrefixJournal
from engine.memory.reservation import Reservation

REMEMBERED_CHANGES = 4096
"""The length of the log of changes, with which callers keep their knowledge of cached blocks up to date."""


class CapacityError(RuntimeError):
    """More blocks were requested than are available. Callers check first, so this is a bug in the caller."""


@dataclass(frozen=True, slots=True)
class Survey:
    """A summary of the references to some cached blocks.

    `free`: blocks without a reference. Of the others: `by_rank`, the number that count for each rank; `by_top_rank`,
    by the highest rank that holds them; `alone`, by holder, the number that no other holder has.
    """

    free: int = 0
    by_rank: Mapping[int, int] = field(default_factory=dict)
    by_top_rank: Mapping[int, int] = field(default_factory=dict)
    alone: Mapping[int, int] = field(default_factory=dict)


class BlockPool:
    """`num_blocks` blocks, each either referenced (in one or more block tables) or free, never both.

    A block may also be *cached*: published under a hash, so that `match` finds it (automatic prefix caching, as in
    vLLM). It stays cached after its last reference is released, until `allocate` reuses it. Free blocks are in lists,
    and `allocate` takes from the front of the first list that is not empty: see `FreeBlocks`. The number of protected
    free blocks of a rank is the unused part of its reserve; older ones move to the back of the common list. So a class
    loses cached blocks to the classes below only when nothing else is left. One rule precedes all lists but the empty
    one: a tenant that has more than `tenant_blocks` blocks reuses its own least recently used one.

    In the inequality of `Reservation`, a referenced block counts for the *lowest* rank that holds it. So a lower class
    cannot use up a reserve by sharing, and no release can violate the inequality.

    Blocks may also be *pledged* to a rank: a number of free blocks that no other rank may take, not chosen before they
    are redeemed. So a request that needs many blocks is admitted at once and gets them over several steps.

    The pool knows no requests. A block belongs to the tenant that allocated it until its content is evicted. `holder`:
    the number of a block table; the pool counts the blocks that each holder holds `alone`.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free_blocks = num_blocks
        """Blocks in the free lists, pledged ones included."""
        self._changes: deque[int] = deque(maxlen=REMEMBERED_CHANGES)
        self.changes_total = 0
        self.on_drop: Callable[[bytes], None] | None = None
        """Called with each hash that is no longer published."""
        self.journal: PrefixJournal | None = None
        """Where changes of the published hashes are recorded."""
        self.reserve([0], num_blocks)

    def reserve(self, reserved_blocks: Sequence[int], tenant_blocks: int) -> None:
        """Set each rank's reserve, and the number of blocks that a tenant may have before it evicts its own.

        Called once, before the first block is allocated.
        """
        assert self._free_blocks == self.num_blocks, "blocks are taken already"
        assert not self._block_of, "blocks are cached already"
        self.reservation = Reservation(reserved_blocks)
        ranks = len(reserved_blocks)
        self._ranks = range(ranks)
        self._tenant_blocks = tenant_blocks
        self._lists = FreeBlocks(self.num_blocks, ranks)
        self._holders = [[0] * self.num_blocks for _ in self._ranks]
        self._rank_of = [0] * self.num_blocks
        self._top_rank_of = [0] * self.num_blocks
        self._top_held = [0] * ranks
        """By rank: referenced blocks whose highest holder is of the rank."""
        self._holder_sum = [0] * self.num_blocks
        """By block: the sum of its holders' numbers, which is the holder where there is one."""
        self._alone: dict[int, int] = {}
        self._pledged = [0] * ranks
        self._free_cached = [0] * ranks
        self._tenant_of = [""] * self.num_blocks
        self._blocks_of_tenant: dict[str, int] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that are neither referenced nor pledged, cached ones included."""
        return self._free_blocks - sum(self._pledged)

    @property
    def cached_blocks(self) -> int:
        """Blocks that `match` can find, referenced or free."""
        return len(self._block_of)

    def held_blocks(self, rank: int) -> int:
        """Referenced blocks that count for the rank, and those that are pledged to it."""
        return self.reservation.held[rank]

    def held_only_below(self, rank: int) -> int:
        """Referenced blocks that only ranks below hold: the blocks that preempting all of those would free."""
        return sum(self._top_held[rank + 1 :])

    def free_cached_blocks(self, rank: int) -> int:
        """Free blocks with content that the rank held last."""
        return self._free_cached[rank]

    def pledged_blocks(self, rank: int) -> int:
        return self._pledged[rank]

    def references(self, block: int) -> int:
        return self._references[block]

    @property
    def alone(self) -> Mapping[int, int]:
        """By holder: the number of blocks that no other holder has. Holders without any may be missing."""
        return self._alone

    def rank_of(self, block: int) -> int:
        """The lowest rank that holds the block, or the last one that did."""
        return self._rank_of[block]

    def tenant_of(self, block: int) -> str:
        """The tenant that allocated the block."""
        return self._tenant_of[block]

    def cached_block(self, block_hash: bytes) -> int | None:
        """The block that is published under the hash."""
        return self._block_of.get(block_hash)

    def next_evicted(self, count: int) -> list[int]:
        """The free blocks with content that are reused next, at most `count`, if no tenant exceeds its part."""
        return self._lists.next_cached(count)

    @property
    def empty_blocks(self) -> int:
        """Free blocks without content, which are taken before content is evicted."""
        return len(self._lists.empty)

    def hash_of(self, block: int) -> bytes | None:
        """The hash under which the block is published; None if it is not."""
        return self._hash_of[block]

    def available_blocks(self, rank: int, hits: Sequence[int] = ()) -> int:
        """Blocks that the rank may still allocate after acquiring the cached blocks `hits`. Can be negative."""
        return self.available_after_hits(rank, self.survey(hits) if hits else Survey())

    def available_after_hits(self, rank: int, hits: Survey) -> int:
        """The same from a survey of the hits. O(ranks)."""
        reserved, held = self.reservation.reserved, self.reservation.held
        kept = 0
        for above in range(rank):  # hits held by `above` alone will count for this rank, which frees that reserve
            kept += max(0, reserved[above] - held[above] + hits.by_rank.get(above, 0))
        return self.free_blocks - hits.free - kept

    def survey(self, blocks: Sequence[int]) -> Survey:
        """Summarise the references to these blocks. Valid until one of them is in `changes_since`."""
        references = list(map(self._references.__getitem__, blocks))
        held = list(compress(blocks, references))
        alone = Counter(self._holder_sum[block] for block in held if self._references[block] == 1)
        by_rank = Counter(map(self._rank_of.__getitem__, held))
        return Survey(references.count(0), by_rank, Counter(map(self._top_rank_of.__getitem__, held)), alone)

    def changes_since(self, total: int) -> list[int] | None:
        """The cached blocks that were acquired, released or evicted since `changes_total` was `total`; None if the log
        does not reach back that far."""
        count = self.changes_total - total
        return list(islice(reversed(self._changes), count)) if count <= len(self._changes) else None

    @property
    def cached_hashes(self) -> list[bytes]:
        """All hashes under which blocks are published."""
        return list(self._block_of)

    def is_cached(self, block_hash: bytes) -> bool:
        """Whether `match` finds the block of this hash."""
        return block_hash in self._block_of

    def match(self, hashes: Sequence[bytes]) -> list[int]:
        """The cached blocks of the leading hashes, up to the first that is not cached.

        Pins nothing: acquire the result before the next `allocate`.
        """
        found = list(map(self._block_of.get, hashes))
        if None in found:
            del found[found.index(None) :]
        return cast("list[int]", found)

    def acquire(self, blocks: Iterable[int], rank: int = 0, holder: int = 0, pledged: int = 0) -> None:
        """Add a reference of the rank to each block. A free block leaves its list and stays cached. `pledged`: the
        number of the free blocks that redeem a pledge of the rank."""
        if pledged:
            self.unpledge(pledged, rank)
        references, rank_of, top_rank_of, sums = self._references, self._rank_of, self._top_rank_of, self._holder_sum
        held, top_held, alone, holders = self.reservation.held, self._top_held, self._alone, self._holders[rank]
        blocks = list(blocks)
        free = [block for block in blocks if not references[block]]
        self._leave_cached(free)
        for block in blocks:
            before = references[block]
            if before == 0:
                rank_of[block] = top_rank_of[block] = rank
            else:
                if before == 1:
                    alone[sums[block]] -= 1
                if rank > rank_of[block]:
                    held[rank_of[block]] -= 1
                    held[rank] += 1
                    rank_of[block] = rank
                elif rank < top_rank_of[block]:
                    top_held[top_rank_of[block]] -= 1
                    top_held[rank] += 1
                    top_rank_of[block] = rank
            references[block] = before + 1
            sums[block] += holder
            holders[block] += 1
        self._note_changes(blocks)
        self._free_blocks -= len(free)
        held[rank] += len(free)
        top_held[rank] += len(free)
        alone[holder] = alone.get(holder, 0) + len(free)
        self._age(rank)

    def allocate(self, count: int, rank: int = 0, tenant: str = "", holder: int = 0) -> list[int]:
        """Take `count` free blocks for a tenant of the rank, with one reference each and no hash.

        Raises:
            CapacityError: fewer may be taken; nothing changed.
        """
        self._claim(count, rank)
        return self._take(count, rank, tenant, holder) if count else []

    def pledge(self, count: int, rank: int) -> None:
        """Pledge `count` free blocks to the rank.

        Raises:
            CapacityError: fewer may be taken; nothing changed.
        """
        self._claim(count, rank)
        self._pledged[rank] += count
        self._age(rank)

    def redeem(self, count: int, rank: int, tenant: str, holder: int) -> list[int]:
        """Allocate `count` of the blocks that were pledged to the rank."""
        assert count <= self._pledged[rank], f"{count} blocks are redeemed, {self._pledged[rank]} pledged"
        self._pledged[rank] -= count
        return self._take(count, rank, tenant, holder) if count else []

    def unpledge(self, count: int, rank: int) -> None:
        """Withdraw the pledge of `count` blocks."""
        assert count <= self._pledged[rank], f"{count} blocks are not needed, {self._pledged[rank]} pledged"
        self._pledged[rank] -= count
        self.reservation.held[rank] -= count

    def publish(self, block: int, block_hash: bytes) -> None:
        """Publish a referenced block with final content under its hash, for `match`.

        Where another block with the same hash is published already, `match` keeps finding that one.
        """
        assert self._references[block] > 0, f"block {block} is published but free"
        assert self._hash_of[block] is None, f"block {block} is published twice"
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash
            if self.journal is not None:
                self.journal.record(block_hash, cached=True)

    def forget(self, blocks: Iterable[int]) -> None:
        """Unpublish these referenced blocks, because their content must not be reused."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is forgotten but free"
            self._drop_hash(block)

    def release(self, blocks: Iterable[int], rank: int = 0, holder: int = 0, *, reuse_first: bool = False) -> None:
        """Drop one reference of the rank from each block, in the given order. Blocks without references become free.

        Pass a block table tail first: the end of a sequence is less useful to other requests than its beginning and
        should be reused earlier. `reuse_first`: those that become free are evicted before all others of their list, the
        last one first.
        """
        references, sums, alone, holders = self._references, self._holder_sum, self._alone, self._holders[rank]
        blocks = list(blocks)
        free: list[int] = []
        for block in blocks:
            remaining = references[block] - 1
            assert remaining >= 0, f"block {block} is released but free"
            references[block] = remaining
            sums[block] -= holder
            holders[block] -= 1
            if not remaining:
                free.append(block)
                continue
            if remaining == 1:
                alone[sums[block]] = alone.get(sums[block], 0) + 1
            if not holders[block]:
                self._become_free(free, rank, holder, reuse_first)  # first, as blocks that age now go behind them
                free.clear()
                self._pass_on(block, rank)
        self._become_free(free, rank, holder, reuse_first)
        self._note_changes(blocks)
        if not alone.get(holder, 1):
            del alone[holder]
        self._age(rank)

    def move(self, blocks: Iterable[int], holder: int, to: int) -> None:
        """Transfer one holder's references to another."""
        for block in blocks:
            self._holder_sum[block] += to - holder
            if self._references[block] == 1:
                self._alone[holder] -= 1
                self._alone[to] = self._alone.get(to, 0) + 1

    def check(self) -> None:
        """Assert that every block is in exactly one state, the hash index matches, and all counts are right."""
        assert all(count >= 0 for count in self._references), "a reference count is negative"
        lists = self._lists.check(self._tenant_of)
        free = sorted(block for blocks in lists for block in blocks)
        assert len(free) == self._free_blocks, f"{len(free)} blocks are listed free, {self._free_blocks} counted"
        assert min(self._pledged) >= 0, "less than nothing is pledged"
        assert self.free_blocks >= 0, "more is pledged than is free"
        unreferenced = [block for block, count in enumerate(self._references) if count == 0]
        assert free == unreferenced, "a block is both free and referenced, or neither"
        published = {value: block for block, value in enumerate(self._hash_of) if value is not None}
        assert published == self._block_of, "the hash index and the blocks disagree"
        for number, blocks in enumerate(lists):
            for block in blocks:
                assert (self._hash_of[block] is None) == (number == EMPTY), f"block {block} is in the wrong list"
        alone = Counter(self._holder_sum[block] for block, count in enumerate(self._references) if count == 1)
        assert alone == Counter(self._alone), "what a table holds alone is miscounted"
        self._check_ranks(lists)
        self._check_tenants()

    def _check_ranks(self, lists: list[list[int]]) -> None:
        held, top_held, cached = list(self._pledged), [0] * len(self._ranks), [0] * len(self._ranks)
        for block, references in enumerate(self._references):
            holding = [rank for rank in self._ranks if self._holders[rank][block]]
            assert sum(holders[block] for holders in self._holders) == references, f"block {block} has lost a holder"
            if holding:
                assert self._rank_of[block] == holding[-1], f"block {block} counts for the wrong class"
                assert self._top_rank_of[block] == holding[0], f"block {block} has another highest holder"
                held[holding[-1]] += 1
                top_held[holding[0]] += 1
            elif self._hash_of[block] is not None:
                cached[self._rank_of[block]] += 1
        assert held == self.reservation.held, "the blocks that a class holds are miscounted"
        assert top_held == self._top_held, "the blocks that no higher class holds are miscounted"
        assert cached == self._free_cached, "the cached blocks of a class are miscounted"
        for rank in self._ranks:
            protected = lists[self._lists.protected(rank)]
            assert len(protected) <= self.reservation.unused(rank), "more is protected than is left of a reserve"
            assert all(self._rank_of[block] == rank for block in protected), "another class's block is protected"

    def _check_tenants(self) -> None:
        owned: dict[str, int] = {}
        for block, tenant in enumerate(self._tenant_of):
            if self._references[block] or self._hash_of[block] is not None:
                owned[tenant] = owned.get(tenant, 0) + 1
        assert owned == self._blocks_of_tenant, "the blocks of a tenant are miscounted"

    def _claim(self, count: int, rank: int) -> None:
        available = self.free_blocks - self.reservation.unused_above(rank)
        if count > available:
            raise CapacityError(f"{count} blocks requested, {available} available")
        self.reservation.held[rank] += count

    def _take(self, count: int, rank: int, tenant: str, holder: int) -> list[int]:
        """Take blocks that are claimed already, empty ones first."""
        owners = self._blocks_of_tenant
        blocks = self._lists.take_empty(count)
        owners[tenant] = owners.get(tenant, 0) + len(blocks)
        for _ in range(count - len(blocks)):
            block = self._next_to_reuse(tenant, owners.get(tenant, 0))
            self._leave_cached((block,))
            self._drop_hash(block)
            self._disown(block)
            owners[tenant] = owners.get(tenant, 0) + 1
            blocks.append(block)
        references, rank_of, top_rank_of, sums = self._references, self._rank_of, self._top_rank_of, self._holder_sum
        tenant_of, holders = self._tenant_of, self._holders[rank]
        for block in blocks:
            references[block] = holders[block] = 1
            rank_of[block] = top_rank_of[block] = rank
            tenant_of[block] = tenant
            sums[block] = holder
        self._free_blocks -= count
        self._top_held[rank] += count
        self._alone[holder] = self._alone.get(holder, 0) + count
        self._age(rank)
        return blocks

    def _next_to_reuse(self, tenant: str, owned: int) -> int:
        """The next block to reuse among those with content."""
        own = self._lists.first_of_tenant(tenant) if owned >= self._tenant_blocks else None
        return self._lists.first_cached() if own is None else own

    def _become_free(self, blocks: Sequence[int], rank: int, holder: int, reuse_first: bool) -> None:
        """Move blocks to the free lists whose last reference was the rank's."""
        if not blocks:
            return
        self._alone[holder] -= len(blocks)
        self.reservation.held[rank] -= len(blocks)
        self._top_held[rank] -= len(blocks)
        self._free_blocks += len(blocks)
        hash_of = self._hash_of
        cached = [block for block in blocks if hash_of[block] is not None]
        if len(cached) < len(blocks):
            empty = [block for block in blocks if hash_of[block] is None]
            self._lists.empty += empty
            for block in empty:
                self._disown(block)
        number = self._lists.protected(rank) if self.reservation.reserved[rank] > 0 else COMMON
        self._lists.add_cached(cached, number, self._tenant_of, reuse_first=reuse_first)
        self._free_cached[rank] += len(cached)

    def _pass_on(self, block: int, rank: int) -> None:
        """Count a block for its remaining holders after the rank's last reference was dropped."""
        others = [other for other in self._ranks if self._holders[other][block]]
        if self._top_rank_of[block] == rank:
            self._top_held[rank] -= 1
            self._top_held[others[0]] += 1
            self._top_rank_of[block] = others[0]
        if self._rank_of[block] == rank:
            heir = others[-1]
            self.reservation.held[rank] -= 1
            self.reservation.held[heir] += 1
            self._rank_of[block] = heir
            self._age(heir)

    def _leave_cached(self, blocks: Sequence[int]) -> None:
        """Remove blocks from the lists of free blocks with content."""
        rank_of, free_cached = self._rank_of, self._free_cached
        for block in blocks:
            free_cached[rank_of[block]] -= 1
        self._lists.remove_cached(blocks, self._tenant_of)

    def _note_changes(self, blocks: Sequence[int]) -> None:
        self._changes.extend(blocks)
        self.changes_total += len(blocks)

    def _disown(self, block: int) -> None:
        tenant = self._tenant_of[block]
        if self._blocks_of_tenant[tenant] == 1:
            del self._blocks_of_tenant[tenant]
        else:
            self._blocks_of_tenant[tenant] -= 1

    def _age(self, rank: int) -> None:
        """Move protected blocks beyond the unused part of the reserve to the back of the common list."""
        if self.reservation.reserved[rank]:
            self._lists.age(rank, self.reservation.unused(rank))

    def _drop_hash(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            self._hash_of[block] = None
            del self._block_of[block_hash]
            self._note_changes((block,))
            if self.on_drop is not None:
                self.on_drop(block_hash)
            if self.journal is not None:
                self.journal.record(block_hash, cached=False)
