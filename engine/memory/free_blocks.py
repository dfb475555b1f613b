"""The free blocks of a pool, in the order of their reuse."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import chain, islice

EMPTY = 0
COMMON = 1
_FIRST_PROTECTED = 2


class FreeBlocks:
    """Free blocks are in lists, each block in one of them. Lists are reused in this order:

        empty             no content; most recently released first
        common            cached; least recently released first
        protected, lowest rank with a reserve ... rank 0
                          cached, last held by that rank; least recently released first

    Blocks with content are also in their tenant's list, least recently released first. Each operation is O(1) per
    block, and uses built-in containers only: a prompt of 100,000 tokens has 6250 blocks.

    `list_of`: the list of each free block; undefined for blocks in use.
    """

    def __init__(self, num_blocks: int, ranks: int) -> None:
        self.empty = list(range(num_blocks - 1, -1, -1))
        """A stack."""
        self.list_of = [EMPTY] * num_blocks
        self._ranks = ranks
        self._cached: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(_FIRST_PROTECTED + ranks)]
        self._of_tenant: dict[str, OrderedDict[int, None]] = {}

    def protected(self, rank: int) -> int:
        """The number of the list of the rank's protected blocks. Lower classes' lists are reused earlier."""
        return _FIRST_PROTECTED + self._ranks - 1 - rank

    def protected_blocks(self, rank: int) -> int:
        return len(self._cached[self.protected(rank)])

    def take_empty(self, count: int) -> list[int]:
        """Take up to `count` blocks without content."""
        count = min(count, len(self.empty))
        if not count:
            return []
        blocks = self.empty[-count:]
        blocks.reverse()
        del self.empty[-count:]
        return blocks

    def add_cached(
        self, blocks: Iterable[int], number: int, tenant_of: Sequence[str], *, reuse_first: bool = False
    ) -> None:
        """Append blocks to a list, and to their tenants' lists. `reuse_first`: put each at the front of both."""
        list_of, cached, of_tenant = self.list_of, self._cached[number], self._of_tenant
        for block in blocks:
            list_of[block] = number
            cached[block] = None
            tenant = tenant_of[block]
            own = of_tenant.get(tenant)
            if own is None:
                own = of_tenant[tenant] = OrderedDict()
            own[block] = None
            if reuse_first:
                cached.move_to_end(block, last=False)
                own.move_to_end(block, last=False)

    def remove_cached(self, blocks: Iterable[int], tenant_of: Sequence[str]) -> None:
        list_of, cached, of_tenant = self.list_of, self._cached, self._of_tenant
        for block in blocks:
            del cached[list_of[block]][block]
            tenant = tenant_of[block]
            own = of_tenant[tenant]
            del own[block]
            if not own:
                del of_tenant[tenant]

    def first_of_tenant(self, tenant: str) -> int | None:
        """The tenant's least recently released block with content."""
        own = self._of_tenant.get(tenant)
        return None if own is None else next(iter(own))

    def reuse_order(self) -> range:
        return range(COMMON, _FIRST_PROTECTED + self._ranks)

    def first_cached(self) -> int:
        """The first block with content in reuse order."""
        return next(next(iter(blocks)) for number in self.reuse_order() if (blocks := self._cached[number]))

    def next_cached(self, count: int) -> list[int]:
        """The first blocks with content in reuse order, at most `count`."""
        return list(islice(chain.from_iterable(self._cached[number] for number in self.reuse_order()), count))

    def age(self, rank: int, max_protected: int) -> None:
        """Move the rank's protected blocks beyond `max_protected` to the back of the common list."""
        protected, common = self._cached[self.protected(rank)], self._cached[COMMON]
        while len(protected) > max_protected:
            block, _ = protected.popitem(last=False)
            self.list_of[block] = COMMON
            common[block] = None

    def check(self, tenant_of: Sequence[str]) -> list[list[int]]:
        """Assert that each block is in the list that `list_of` names and in its tenant's. Returns all lists."""
        lists = [self.empty, *map(list, self._cached[COMMON:])]
        for number, blocks in enumerate(lists):
            for block in blocks:
                assert number == EMPTY or self.list_of[block] == number, f"block {block} is not where it says"
        by_tenant: dict[str, set[int]] = {}
        for block in (block for blocks in lists[COMMON:] for block in blocks):
            by_tenant.setdefault(tenant_of[block], set()).add(block)
        listed = {tenant: set(blocks) for tenant, blocks in self._of_tenant.items()}
        assert listed == by_tenant, "the free blocks of a tenant are miscounted"
        return lists
