"""The number of blocks that preempting some requests frees."""

from collections import Counter
from collections.abc import Sequence

from engine.memory.block_pool import BlockPool, Survey
from engine.memory.shared_prompt import SharedPrompt
from engine.memory.window_groups import held_blocks
from engine.request import Request


class PreemptionGain:
    """Counts the blocks that preempting a set of requests would free, except the blocks of `hits`, which are acquired
    again.

    The pool knows the blocks that each request holds alone. Blocks that several requests share are freed with the last
    of them; counting those takes a walk over block tables, which is deferred until it can decide.
    """

    def __init__(self, pool: BlockPool, hits: Sequence[tuple[Sequence[int], Survey]], rank: int) -> None:
        """`rank`: that of the request to admit. All candidates are of ranks below."""
        self._pool = pool
        self._hits = hits
        self._rank = rank
        self._taken_again: dict[int, int] = {}
        """By holder: the blocks of `hits` that it holds alone."""
        for _, survey in hits:
            for holder, blocks in survey.alone.items():
                self._taken_again[holder] = self._taken_again.get(holder, 0) + blocks
        self._counted = 0
        self._unwalked: list[tuple[Sequence[int], int]] = []
        self._unwalked_blocks = 0
        self._given_back: Counter[int] = Counter()
        self._prompts: Counter[int] = Counter()
        self._hit_blocks: frozenset[int] | None = None

    @property
    def upper_bound(self) -> int:
        """The blocks that preempting all requests below the rank frees. O(ranks + shared hits)."""
        taken = sum(count for _, survey in self._hits for top, count in survey.by_top_rank.items() if top > self._rank)
        pledged = sum(map(self._pool.pledged_blocks, range(self._rank + 1, len(self._pool.reservation.reserved))))
        return self._pool.held_only_below(self._rank) + pledged - taken

    def of_request(self, request: Request) -> int:
        """The blocks that preempting this request alone frees."""
        holder, shared = request.holder, request.shared
        count = self._pool.alone.get(holder, 0) + request.pledged_blocks - self._taken_again.get(holder, 0)
        if shared is not None and shared.requests == 1:
            count += self._alone(shared.holder)
        return count

    def add(self, request: Request) -> None:
        """Add a request to the set."""
        shared = request.shared
        own = held_blocks(request) if shared is None else request.block_table[len(shared.blocks) :]
        self._counted += request.pledged_blocks
        self._add(own, request.holder)
        if shared is not None:
            self._add_prompt(shared)

    def reaches(self, blocks: int) -> bool:
        """Whether preempting the set frees at least `blocks` blocks."""
        if self._counted < blocks <= self._counted + self._unwalked_blocks:
            self._walk()
        return self._counted >= blocks

    def _add_prompt(self, shared: SharedPrompt) -> None:
        self._prompts[shared.holder] += 1
        if self._prompts[shared.holder] == shared.requests:
            self._add(shared.blocks, shared.holder)

    def _add(self, blocks: Sequence[int], holder: int) -> None:
        others = len(blocks) - self._pool.alone.get(holder, 0)
        if others:
            self._unwalked.append((blocks, holder))
            self._unwalked_blocks += others
        self._counted += self._alone(holder)

    def _alone(self, holder: int) -> int:
        """Blocks that the holder holds alone, without those of `hits`."""
        return self._pool.alone.get(holder, 0) - self._taken_again.get(holder, 0)

    def _walk(self) -> None:
        """Count the shared blocks whose holders are all in the set."""
        if self._hit_blocks is None:
            self._hit_blocks = frozenset(block for blocks, _ in self._hits for block in blocks)
        for blocks, _ in self._unwalked:
            self._given_back.update(block for block in blocks if self._pool.references(block) > 1)
            for block in blocks:
                references = self._pool.references(block)
                if references > 1 and self._given_back[block] == references and block not in self._hit_blocks:
                    self._counted += 1
        self._unwalked, self._unwalked_blocks = [], 0
