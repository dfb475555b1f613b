"""Block tables of layers with a sliding window, whose blocks are released when the window has passed them.

Layers are in groups of one kind each, and a block holds the KV of 16 tokens in the layers of one group (as in vLLM's
hybrid KV cache manager; Jenga, Zhang et al., arXiv 2503.18292). All groups take their blocks from one pool.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from engine.config import BLOCK_TOKENS
from engine.memory.block_pool import BlockPool
from engine.memory.prefix_hits import PrefixHits
from engine.request import NULL_BLOCK, Request


def first_in_window(computed: int, window: int | None) -> int:
    """The number of the first block that the token at position `computed`, or a later one, attends to."""
    return 0 if window is None else max(0, computed - window + 1) // BLOCK_TOKENS


def group_hash(block_hash: bytes, group: int) -> bytes:
    """The hash of the block of a further group, from that of the first group's block of the same tokens."""
    return block_hash + group.to_bytes(1, "little")


class WindowGroups:
    """Keeps the `window_tables` and `window_starts` of requests; nothing else writes them.

    The `block_table` of a request is that of the first group, whose layers attend to everything. Each further group has
    a table of its own, of the same length:

        |  passed by the window: NULL_BLOCK  |  in the window of the next token  |  later tokens  |
        |<--------- window_starts ---------->|

    A passed block stays cached while it is free, as the blocks of an ended request do. A prefix of n blocks is reused
    where the first group's n blocks are cached and, in each further group, those in the window of the token after it.

    Blocks are released by `computed` tokens, which never go back while a request runs, and steps in flight begin there.
    """

    def __init__(self, pool: BlockPool, windows: Sequence[int | None]) -> None:
        """`windows`: of the groups after the first, in tokens, with the query's own; None: all tokens."""
        assert windows, "a model of one group has no further tables"
        self._pool = pool
        self._windows = tuple(windows)

    @property
    def groups(self) -> int:
        """Groups in all: the blocks that hold 16 tokens that no window has passed."""
        return 1 + len(self._windows)

    def narrow(self, hits: PrefixHits, request: Request) -> None:
        """Reduce the first group's `hits` to the longest prefix that all groups have, and add the others' blocks."""
        count, missing = self._longest(request, len(hits.blocks))
        windows = [self._match(request, group, count) for group in self._further()]
        hits.narrow(self._pool, count, windows, missing)

    def begin(self, request: Request, hits: PrefixHits) -> None:
        """Begin the tables of an admitted request with its hits."""
        computed = len(hits.blocks) * BLOCK_TOKENS
        request.window_starts = [first_in_window(computed, window) for window in self._windows]
        tables = hits.windows if hits.blocks else [[] for _ in self._windows]
        request.window_tables = [
            [NULL_BLOCK] * start + table for start, table in zip(request.window_starts, tables, strict=True)
        ]

    def extend(self, request: Request, blocks: Sequence[int]) -> None:
        """Append blocks to all tables, equally many to each."""
        each = len(blocks) // self.groups
        assert each * self.groups == len(blocks), f"{len(blocks)} blocks for {self.groups} tables"
        request.block_table += blocks[:each]
        for group, table in enumerate(request.window_tables, 1):
            table += blocks[group * each : (group + 1) * each]

    def publish(self, request: Request, first: int, full: int) -> None:
        """Publish the blocks number `first` to `full`, whose hashes are known."""
        for group, table in enumerate(request.window_tables, 1):
            for index in range(first, full):
                self._pool.publish(table[index], group_hash(request.block_hashes[index], group))

    def release_passed(self, request: Request) -> None:
        """Release the blocks that the windows have passed, the first ones first: a later prefix needs the last ones."""
        for number, (table, window) in enumerate(zip(request.window_tables, self._windows, strict=True)):
            start, first = request.window_starts[number], first_in_window(request.computed, window)
            if first > start:
                self._pool.release(table[start:first], request.rank, request.holder)
                table[start:first] = [NULL_BLOCK] * (first - start)
                request.window_starts[number] = first

    def cut(self, request: Request, kept: int) -> list[int]:
        """Remove the blocks from number `kept` on from the tables. Returns those to release, the last ones first."""
        cut = [table[kept:] for table in (request.block_table, *request.window_tables)]
        for table in (request.block_table, *request.window_tables):
            del table[kept:]
        return [block for blocks in zip(*map(reversed, cut), strict=True) for block in blocks]

    def end(self, request: Request) -> list[int]:
        """End a request's tables. Returns their blocks in order of position."""
        tables = (request.block_table, *request.window_tables)
        request.window_tables, request.window_starts = [], []
        return [block for blocks in zip(*tables, strict=True) for block in blocks if block != NULL_BLOCK]

    def check(self, requests: Iterable[Request]) -> None:
        """Assert the invariants of the further tables between any two steps."""
        for request in requests:
            assert len(request.window_tables) == (len(self._windows) if request.block_table else 0) or (
                request.is_allocating
            ), f"{request.id} lacks a table"
            for group, (table, start) in enumerate(zip(request.window_tables, request.window_starts, strict=True), 1):
                self._check_table(request, group, table, start)

    def _check_table(self, request: Request, group: int, table: Sequence[int], start: int) -> None:
        full = request.computed // BLOCK_TOKENS
        assert len(table) == len(request.block_table), f"{request.id} has tables of different lengths"
        assert start <= first_in_window(request.computed, self._windows[group - 1]), (
            f"{request.id} has released a block that it attends to"
        )
        assert table[:start] == [NULL_BLOCK] * start, f"{request.id} keeps a block that its window has passed"
        assert NULL_BLOCK not in table[start:], f"{request.id} lacks a block in its window"
        for block in table[max(full, start) :]:
            assert self._pool.references(block) == 1, f"{request.id} would write to shared block {block}"
            assert self._pool.hash_of(block) is None, f"{request.id} would write to cached block {block}"
        for block, content in zip(table[start:full], request.block_hashes[start:], strict=False):
            known = self._pool.hash_of(block)
            assert known in (None, group_hash(content, group)), f"{request.id} reads another's block {block}"

    def _further(self) -> range:
        return range(1, self.groups)

    def _longest(self, request: Request, count: int) -> tuple[int, bytes | None]:
        """The most leading blocks, up to `count`, whose windows are cached in all groups; and the hash of the first
        block found to be missing, if they are fewer. O(count)."""
        find, hashes, group, missing = self._pool.is_cached, request.block_hashes, 0, None
        reached = [count] * self.groups  # by group: from this block to `count`, all are cached
        while count and (group := group + 1) < self.groups:
            first = first_in_window(count * BLOCK_TOKENS, self._windows[group - 1])
            index = min(reached[group], count)
            while index > first and find(group_hash(hashes[index - 1], group)):
                index -= 1
            reached[group] = index
            if index > first:  # a shorter prefix cannot have a later window: this block is in all of them
                missing = missing or group_hash(hashes[index - 1], group)
                count, group = index - 1, 0
                reached = [min(end, count) for end in reached]
        return count, missing

    def _match(self, request: Request, group: int, count: int) -> list[int]:
        first = first_in_window(count * BLOCK_TOKENS, self._windows[group - 1])
        return self._pool.match([group_hash(known, group) for known in request.block_hashes[first:count]])


def held_blocks(request: Request) -> list[int]:
    """The blocks in all tables of a request."""
    if not request.window_tables:
        return request.block_table
    further = (table[start:] for table, start in zip(request.window_tables, request.window_starts, strict=True))
    return [*request.block_table, *chain.from_iterable(further)]


def num_held_blocks(request: Request) -> int:
    """The number of blocks in all tables of a request. O(groups)."""
    return len(request.block_table) * (1 + len(request.window_tables)) - sum(request.window_starts)
