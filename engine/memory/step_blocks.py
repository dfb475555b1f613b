"""The bounded work on blocks between two steps: large demands are allocated, and large tables returned, in parts."""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from engine.memory.block_pool import BlockPool
from engine.request import Request

BLOCKS_A_STEP = 1024
"""Blocks that are allocated to admitted requests per step, and blocks that are returned per step: about half a
millisecond each. The rest waits for the next step. Blocks that running requests grow by are not counted."""


class Return(NamedTuple):
    """Blocks of a former block table of the rank, to be released, the last ones first."""

    blocks: list[int]
    rank: int
    holder: int


class StepBlocks:
    """Keeps the `pledged_blocks` and `is_allocating` of requests; nothing else writes them.

    A request whose demand exceeds the step's `blocks_a_step` *is allocating*: it gets part of its blocks in each step
    and computes nothing before it has all; the missing ones are pledged to it. Released blocks beyond as many per step
    are *returning*: they become free in later steps, in the order of their release.
    """

    def __init__(self, pool: BlockPool, blocks_a_step: int = BLOCKS_A_STEP) -> None:
        self._pool = pool
        self._blocks_a_step = blocks_a_step
        self._allocation_budget = self._return_budget = blocks_a_step
        """Blocks that may still be allocated, and returned, in this step."""
        self._returns: deque[Return] = deque()
        self._returning_blocks = 0

    @property
    def returning_blocks(self) -> int:
        """Released blocks that are not free yet. Those that other requests share stay in use."""
        return self._returning_blocks

    @property
    def returns(self) -> Iterable[Return]:
        """Returning blocks, in the order of their release."""
        return self._returns

    @property
    def allocation_budget(self) -> int:
        """Blocks that may still be allocated to admitted requests in this step. At most 0: none."""
        return self._allocation_budget

    def begin_step(self) -> None:
        """Begin a step's budgets, and free returning blocks within them."""
        self._allocation_budget = self._return_budget = self._blocks_a_step
        self._take_back()

    def hurry_return(self) -> None:
        """Free another step's worth of returning blocks, because a running request needs them."""
        self._return_budget = self._blocks_a_step
        self._take_back()

    def spend(self, blocks: int) -> None:
        """Count blocks that an admitted request got in this step."""
        self._allocation_budget -= blocks

    def begin_allocation(self, request: Request, blocks: int) -> None:
        """Pledge all `blocks` blocks of a demand that exceeds the step's budget."""
        request.pledged_blocks = blocks
        self._pool.pledge(blocks, request.rank)
        request.is_allocating = True

    def raise_pledge(self, request: Request, blocks: int) -> bool:
        """Pledge at least `blocks` blocks to the request: blocks that it was going to share may have been freed."""
        missing = max(0, blocks - request.pledged_blocks)
        if missing > self._pool.available_blocks(request.rank):
            return False
        self._pool.pledge(missing, request.rank)
        request.pledged_blocks += missing
        return True

    def redeem(self, request: Request, cached: list[int], taken: int, count: int) -> list[int]:
        """Acquire cached blocks, `taken` of which redeem the pledge, and allocate `count` of the pledged ones. Returns
        all of them, the cached ones first."""
        self._pool.acquire(cached, request.rank, request.holder, pledged=taken)
        blocks = cached + self._pool.redeem(count, request.rank, request.tenant, request.holder)
        request.pledged_blocks -= taken + count
        self.spend(len(blocks))
        return blocks

    def end_allocation(self, request: Request) -> None:
        """The request has all its blocks, or gives them up."""
        self._pool.unpledge(request.pledged_blocks, request.rank)
        request.pledged_blocks = 0
        request.is_allocating = False

    def give_back(self, blocks: list[int], rank: int, holder: int) -> None:
        """Release blocks, the last ones first: at once or, beyond the step's budget, in one of the next steps."""
        if blocks:
            self._returns.append(Return(blocks, rank, holder))
            self._returning_blocks += len(blocks)
            self._take_back()

    def check(self, requests: Iterable[Request]) -> None:
        """Assert that pledges and returning blocks are counted right. `requests`: all unfinished ones."""
        requests = list(requests)
        returning_blocks = sum(len(returning.blocks) for returning in self._returns)
        assert self._returning_blocks == returning_blocks, "returning blocks are miscounted"
        for request in requests:
            assert request.is_allocating or not request.pledged_blocks, (
                f"{request.id} has its blocks, and more are pledged to it"
            )
        ranks = range(len(self._pool.reservation.reserved))
        pledged = [sum(request.pledged_blocks for request in requests if request.rank == rank) for rank in ranks]
        assert pledged == [self._pool.pledged_blocks(rank) for rank in ranks], "what is pledged is miscounted"

    def _take_back(self) -> None:
        """Free returning blocks, as many as this step still may."""
        while self._returns and self._return_budget:
            blocks, rank, holder = self._returns[0]
            taken = blocks[-self._return_budget :]
            del blocks[-self._return_budget :]
            taken.reverse()
            self._pool.release(taken, rank, holder)
            self._return_budget -= len(taken)
            self._returning_blocks -= len(taken)
            if not blocks:
                self._returns.popleft()
