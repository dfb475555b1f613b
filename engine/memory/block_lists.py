"""Several queues over the same blocks, each block in one of them at most."""

NOWHERE = -1


class BlockLists:
    """`num_lists` doubly linked lists of blocks, through two arrays. Each operation is O(1), removal included. At first
    all blocks are in list 0, in order.

    The index `num_blocks + n` is the sentinel before the front and after the back of list n.
    """

    def __init__(self, num_blocks: int, num_lists: int) -> None:
        self._num_blocks = num_blocks
        self.sizes = [num_blocks, *(0 for _ in range(num_lists - 1))]
        self.list_of = [0] * num_blocks
        ring, others = num_blocks + 1, range(num_blocks + 1, num_blocks + num_lists)
        self._next = [*range(1, ring), 0, *others]
        self._previous = [num_blocks, *range(num_blocks), *others]

    def first(self, number: int) -> int | None:
        """The block at the front."""
        block = self._next[self._num_blocks + number]
        return block if block < self._num_blocks else None

    def push_front(self, number: int, block: int) -> None:
        sentinel = self._num_blocks + number
        self._link(number, sentinel, block, self._next[sentinel])

    def push_back(self, number: int, block: int) -> None:
        sentinel = self._num_blocks + number
        self._link(number, self._previous[sentinel], block, sentinel)

    def remove(self, block: int) -> None:
        """Take a block out of the list that it is in."""
        before, after = self._previous[block], self._next[block]
        self._next[before], self._previous[after] = after, before
        self.sizes[self.list_of[block]] -= 1
        self.list_of[block] = NOWHERE

    def check(self) -> list[list[int]]:
        """The links agree both ways, with the sizes, and with what each block says. Returns the lists."""
        lists: list[list[int]] = []
        for number, size in enumerate(self.sizes):
            sentinel = self._num_blocks + number
            blocks: list[int] = []
            before, block = sentinel, self._next[sentinel]
            while block != sentinel:
                assert self._previous[block] == before, f"list {number} is torn between {before} and {block}"
                assert self.list_of[block] == number, f"block {block} is not where it says"
                assert len(blocks) < size, f"list {number} has a loop, or more than are counted"
                blocks.append(block)
                before, block = block, self._next[block]
            assert self._previous[sentinel] == before, f"list {number} is torn at its back"
            assert len(blocks) == size, f"{len(blocks)} blocks are in list {number}, {size} counted"
            lists.append(blocks)
        return lists

    def _link(self, number: int, before: int, block: int, after: int) -> None:
        self._previous[block], self._next[block] = before, after
        self._next[before] = self._previous[after] = block
        self.list_of[block] = number
        self.sizes[number] += 1
