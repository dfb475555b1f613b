"""The blocks of KV memory: ids, reference counts, the lists of free ones, the index of cached ones."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.memory.block_lists import BlockLists
from engine.memory.reservation import Reservation

_EMPTY = 0
_COMMON = 1
_FIRST_PROTECTED = 2


class CapacityError(RuntimeError):
    """More blocks were asked for than may be taken. The callers ask first, so this is a bug of theirs."""


class BlockPool:
    """`num_blocks` blocks, each either referenced (in one or more block tables) or free, never both.

    A block may also be *cached*: published under a hash, so that `match` finds it. It stays cached when its last
    reference goes and until `allocate` takes it for something else, so a free block is never idle memory. Free
    blocks are in lists, and `allocate` takes from the front of the first that is not empty:

        empty             no content
        common            cached; least recently released first
        protected, lowest rank with a reserve ... rank 0
                          cached, last held by that rank, as many as it has of its reserve and does not hold;
                          what is more than that has aged into the back of `common`

    so that a class does not lose its cache to the classes below while there is anything else. Before all but
    `empty` comes this: a tenant that has more than `tenant_blocks` blocks gives up its own least recently used one.

    A referenced block counts, in the inequality of `Reservation`, for the *lowest* rank that holds it. So a lower
    class cannot use up a reserve by sharing, and no release can break the inequality that held before it.

    The pool knows no requests. A block belongs to the tenant that allocated it until its content is gone.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free_blocks = num_blocks
        self.reserve([0], num_blocks)

    def reserve(self, reserved_blocks: Sequence[int], tenant_blocks: int) -> None:
        """Say what each rank has reserved, and how much a tenant may have before it evicts its own.

        Once, before the first block is taken.
        """
        assert self._free_blocks == self.num_blocks, "blocks are taken already"
        assert not self._block_of, "blocks are cached already"
        self.reservation = Reservation(reserved_blocks)
        ranks = len(reserved_blocks)
        self._ranks = range(ranks)
        self._tenant_blocks = tenant_blocks
        self._lists = BlockLists(self.num_blocks, _FIRST_PROTECTED + ranks)  # all are empty, which is list 0
        self._holders = [[0] * self.num_blocks for _ in self._ranks]
        self._rank_of = [0] * self.num_blocks
        self._free_cached = [0] * ranks
        self._tenant_of = [""] * self.num_blocks
        self._blocks_of_tenant: dict[str, int] = {}
        self._cached_of_tenant: dict[str, OrderedDict[int, None]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that no table holds, cached ones included."""
        return self._free_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks that `match` can find, referenced or free."""
        return len(self._block_of)

    def held_blocks(self, rank: int) -> int:
        """Referenced blocks that count for the rank."""
        return self.reservation.held[rank]

    def free_cached_blocks(self, rank: int) -> int:
        """Free blocks with content that the rank was the last to hold."""
        return self._free_cached[rank]

    def references(self, block: int) -> int:
        return self._references[block]

    def hash_of(self, block: int) -> bytes | None:
        """The hash that the block is published under, if it is."""
        return self._hash_of[block]

    def room(self, rank: int, hits: Sequence[int] = ()) -> int:
        """How many blocks the rank may still allocate, once it has acquired these cached ones. Can be negative."""
        free, held = self._free_blocks, self.reservation.held
        lent: dict[int, int] = {}
        for block in hits:
            if self._references[block] == 0:
                free -= 1
            elif self._rank_of[block] < rank:  # it will count for this rank, and that reserve be less used
                lent[self._rank_of[block]] = lent.get(self._rank_of[block], 0) + 1
        reserved = self.reservation.reserved
        return free - sum(max(0, reserved[above] - held[above] + lent.get(above, 0)) for above in range(rank))

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """The cached blocks of the leading hashes, up to the first that is not cached.

        Pins nothing: acquire the result before the next `allocate`. `hashes` is read no further than the miss.
        """
        block_of = self._block_of
        blocks = []
        for block_hash in hashes:
            block = block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def acquire(self, blocks: Iterable[int], rank: int = 0) -> None:
        """Add a reference of the rank to each block; a free one leaves its list and stays cached."""
        held = self.reservation.held
        for block in blocks:
            if self._references[block] == 0:
                self._lists.remove(block)
                self._leave_cached(block)
                self._free_blocks -= 1
                held[rank] += 1
                self._rank_of[block] = rank
            elif rank > self._rank_of[block]:
                held[self._rank_of[block]] -= 1
                held[rank] += 1
                self._rank_of[block] = rank
            self._references[block] += 1
            self._holders[rank][block] += 1
        self._age(rank)

    def allocate(self, count: int, rank: int = 0, tenant: str = "") -> list[int]:
        """Take `count` free blocks for a tenant of the rank, with one reference each and no hash.

        Raises:
            CapacityError: fewer may be taken; nothing changed.
        """
        room = self._free_blocks - self.reservation.unused_above(rank)
        if count > room:
            raise CapacityError(f"{count} blocks asked for, {room} free")
        if not count:
            return []
        holders = self._holders[rank]
        blocks = []
        owned = self._blocks_of_tenant.get(tenant, 0)
        for _ in range(count):
            block = self._next_to_reuse(tenant, owned)
            self._lists.remove(block)
            if self._hash_of[block] is not None:
                self._leave_cached(block)
                self._drop_hash(block)
                owned -= self._tenant_of[block] == tenant
                self._disown(block)
            self._references[block] = 1
            holders[block] = 1
            self._rank_of[block] = rank
            self._tenant_of[block] = tenant
            owned += 1
            self._blocks_of_tenant[tenant] = owned
            blocks.append(block)
        self._free_blocks -= count
        self.reservation.held[rank] += count
        self._age(rank)
        return blocks

    def publish(self, block: int, block_hash: bytes) -> None:
        """Let `match` find a referenced block, whose content is final, under its hash.

        Where another block of the same content is published already, that one stays the one to find.
        """
        assert self._references[block] > 0, f"block {block} is published but free"
        assert self._hash_of[block] is None, f"block {block} is published twice"
        if block_hash not in self._block_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def forget(self, blocks: Iterable[int]) -> None:
        """Let `match` find these referenced blocks no more: their content is not to be trusted."""
        for block in blocks:
            assert self._references[block] > 0, f"block {block} is forgotten but free"
            self._drop_hash(block)

    def release(self, blocks: Iterable[int], rank: int = 0) -> None:
        """Drop one reference of the rank from each block, in the order given; one without any left becomes free.

        Pass a block table tail first: the end of a sequence is of less use to others than its beginning, so it
        should be reused earlier.
        """
        held, holders = self.reservation.held, self._holders[rank]
        for block in blocks:
            remaining = self._references[block] - 1
            assert remaining >= 0, f"block {block} is released but free"
            self._references[block] = remaining
            holders[block] -= 1
            if not remaining:
                held[rank] -= 1
                self._free_blocks += 1
                self._become_free(block, rank)
            elif not holders[block] and self._rank_of[block] == rank:
                heir = max(other for other in self._ranks if self._holders[other][block])
                held[rank] -= 1
                held[heir] += 1
                self._rank_of[block] = heir
                self._age(heir)
        self._age(rank)

    def check(self) -> None:
        """Every block is in exactly one state, the hash index agrees both ways, and all that is counted is there."""
        assert all(count >= 0 for count in self._references), "a reference count is negative"
        lists = self._lists.check()
        free = sorted(block for blocks in lists for block in blocks)
        assert len(free) == self._free_blocks, f"{len(free)} blocks are listed free, {self._free_blocks} counted"
        unreferenced = [block for block, count in enumerate(self._references) if count == 0]
        assert free == unreferenced, "a block is both free and referenced, or neither"
        published = {value: block for block, value in enumerate(self._hash_of) if value is not None}
        assert published == self._block_of, "the hash index and the blocks disagree"
        for number, blocks in enumerate(lists):
            for block in blocks:
                assert (self._hash_of[block] is None) == (number == _EMPTY), f"block {block} is in the wrong list"
        self._check_ranks(lists)
        self._check_tenants()

    def _check_ranks(self, lists: list[list[int]]) -> None:
        held, cached = [0] * len(self._ranks), [0] * len(self._ranks)
        for block, references in enumerate(self._references):
            holding = [rank for rank in self._ranks if self._holders[rank][block]]
            assert sum(holders[block] for holders in self._holders) == references, f"block {block} has lost a holder"
            if holding:
                assert self._rank_of[block] == holding[-1], f"block {block} counts for the wrong class"
                held[holding[-1]] += 1
            elif self._hash_of[block] is not None:
                cached[self._rank_of[block]] += 1
        assert held == self.reservation.held, "the blocks that a class holds are miscounted"
        assert cached == self._free_cached, "the cached blocks of a class are miscounted"
        for rank in self._ranks:
            protected = lists[self._protected(rank)]
            assert len(protected) <= self.reservation.unused(rank), "more is protected than is left of a reserve"
            assert all(self._rank_of[block] == rank for block in protected), "another class's block is protected"

    def _check_tenants(self) -> None:
        owned: dict[str, int] = {}
        cached: dict[str, int] = {}
        for block, tenant in enumerate(self._tenant_of):
            if self._references[block] or self._hash_of[block] is not None:
                owned[tenant] = owned.get(tenant, 0) + 1
            if not self._references[block] and self._hash_of[block] is not None:
                cached[tenant] = cached.get(tenant, 0) + 1
                assert block in self._cached_of_tenant[tenant], f"block {block} is missing from its tenant's"
        assert owned == self._blocks_of_tenant, "the blocks of a tenant are miscounted"
        assert cached == {tenant: len(blocks) for tenant, blocks in self._cached_of_tenant.items()}

    def _protected(self, rank: int) -> int:
        """The list of the rank's protected blocks; the lower the rank, the earlier it is reused."""
        return _FIRST_PROTECTED + len(self._ranks) - 1 - rank

    def _next_to_reuse(self, tenant: str, owned: int) -> int:
        block = self._lists.first(_EMPTY)
        if block is not None:
            return block
        if owned >= self._tenant_blocks and tenant in self._cached_of_tenant:
            return next(iter(self._cached_of_tenant[tenant]))
        return next(block for number in self._reuse_order() if (block := self._lists.first(number)) is not None)

    def _reuse_order(self) -> range:
        return range(_COMMON, _FIRST_PROTECTED + len(self._ranks))

    def _become_free(self, block: int, rank: int) -> None:
        if self._hash_of[block] is None:
            self._lists.push_front(_EMPTY, block)
            self._disown(block)
            return
        protected = self.reservation.reserved[rank] > 0
        self._lists.push_back(self._protected(rank) if protected else _COMMON, block)
        self._free_cached[rank] += 1
        self._cached_of_tenant.setdefault(self._tenant_of[block], OrderedDict())[block] = None

    def _leave_cached(self, block: int) -> None:
        """The block was free with content, and is neither any more."""
        self._free_cached[self._rank_of[block]] -= 1
        tenant = self._tenant_of[block]
        cached = self._cached_of_tenant[tenant]
        del cached[block]
        if not cached:
            del self._cached_of_tenant[tenant]

    def _disown(self, block: int) -> None:
        tenant = self._tenant_of[block]
        if self._blocks_of_tenant[tenant] == 1:
            del self._blocks_of_tenant[tenant]
        else:
            self._blocks_of_tenant[tenant] -= 1

    def _age(self, rank: int) -> None:
        """What is protected beyond the reserve's unused part goes to the back of the common list."""
        number = self._protected(rank)
        while self._lists.sizes[number] > self.reservation.unused(rank):
            block = self._lists.first(number)
            assert block is not None
            self._lists.remove(block)
            self._lists.push_back(_COMMON, block)

    def _drop_hash(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            self._hash_of[block] = None
            del self._block_of[block_hash]
