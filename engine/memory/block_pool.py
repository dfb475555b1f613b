"""The blocks of KV memory: ids, reference counts, the LRU list of free ones, the index of cached ones."""

from collections.abc import Iterable


class CapacityError(RuntimeError):
    """More blocks were asked for than are free. The callers ask first, so this is a bug of theirs."""


class BlockPool:
    """`num_blocks` blocks, each either referenced (in one or more block tables) or free, never both.

    A block may also be *cached*: published under a hash, so that `match` finds it. It stays cached when its last
    reference goes and until `allocate` takes it for something else, so a free block is never idle memory:

        front                                                            back
        [ free, not cached, last released first | free, cached, least recently released first ]
          ^ `allocate` takes from here                     `match` and `acquire` take from anywhere ^

    The free list is linked through two arrays of block ids, so that a hit leaves its middle in O(1). Index
    `num_blocks` is the sentinel before the front and after the back. The pool knows no requests.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._next = [*range(1, num_blocks + 1), 0]
        self._previous = [num_blocks, *range(num_blocks)]
        self._references = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._free_blocks = num_blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that no table holds, cached ones included."""
        return self._free_blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks that `match` can find, referenced or free."""
        return len(self._block_of)

    def references(self, block: int) -> int:
        return self._references[block]

    def hash_of(self, block: int) -> bytes | None:
        """The hash that the block is published under, if it is."""
        return self._hash_of[block]

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

    def acquire(self, blocks: Iterable[int]) -> None:
        """Add a reference to each block; a free one leaves the free list and stays cached."""
        references = self._references
        for block in blocks:
            if references[block] == 0:
                self._unlink(block)
            references[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take the `count` blocks at the front of the free list, with one reference each and no hash.

        Raises:
            CapacityError: fewer are free; nothing changed.
        """
        if count > self._free_blocks:
            raise CapacityError(f"{count} blocks asked for, {self._free_blocks} free")
        following = self._next
        blocks = []
        block = following[self.num_blocks]
        for _ in range(count):
            blocks.append(block)
            self._references[block] = 1
            self._drop_hash(block)
            block = following[block]
        following[self.num_blocks] = block
        self._previous[block] = self.num_blocks
        self._free_blocks -= count
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

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block, in the order given; one without any left becomes free.

        Pass a block table tail first: the end of a sequence is of less use to others than its beginning, so it
        should be reused earlier.
        """
        references = self._references
        following, previous = self._next, self._previous
        sentinel = self.num_blocks
        for block in blocks:
            remaining = references[block] - 1
            assert remaining >= 0, f"block {block} is released but free"
            references[block] = remaining
            if remaining:
                continue
            if self._hash_of[block] is None:
                before, after = sentinel, following[sentinel]
            else:
                before, after = previous[sentinel], sentinel
            previous[block], following[block] = before, after
            following[before] = previous[after] = block
            self._free_blocks += 1

    def check(self) -> None:
        """Every block is in exactly one state, and the hash index and the blocks agree both ways."""
        free: list[int] = []
        before, block = self.num_blocks, self._next[self.num_blocks]
        while block != self.num_blocks:
            assert self._previous[block] == before, f"the free list is torn between {before} and {block}"
            assert len(free) < self.num_blocks, "the free list has a loop"
            free.append(block)
            before, block = block, self._next[block]
        assert self._previous[self.num_blocks] == before, "the free list is torn at its back"
        assert len(free) == self._free_blocks, f"{len(free)} blocks are listed free, {self._free_blocks} counted"

        unreferenced = [block for block, count in enumerate(self._references) if count == 0]
        assert all(count >= 0 for count in self._references), "a reference count is negative"
        assert sorted(free) == unreferenced, "a block is both free and referenced, or neither"

        cached = [self._hash_of[block] is not None for block in free]
        assert cached == sorted(cached), "a cached block would be reused before one that is not cached"

        published = {value: block for block, value in enumerate(self._hash_of) if value is not None}
        assert published == self._block_of, "the hash index and the blocks disagree"

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self._free_blocks -= 1

    def _drop_hash(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is not None:
            self._hash_of[block] = None
            del self._block_of[block_hash]
