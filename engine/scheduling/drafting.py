"""Drafts in a step: who can have some, how many there is room for, and into which rows they come."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS
from engine.memory.kv_cache import KVCacheManager
from engine.request import Request
from engine.scheduling.plan import ScheduledRow, scheduled_row

Drafts = Mapping[Request, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DraftRoom:
    """What a step has left for drafts when all its rows are made.

    `useful` are the requests that can have some, in the order of their rows, with how many of them could be of use to
    each. There may be `tokens` of them in all, and of each class, by rank, `rank_tokens`.
    """

    useful: Mapping[Request, int]
    tokens: int
    rank_tokens: Sequence[int]

    def shares(self, requests: Sequence[Request]) -> list[int]:
        """How many drafts each of the requests can have, where all of them have as many. None at all where there is
        not enough for one each: the step is full of what somebody waits for."""
        if not requests:
            return []
        counts = Counter(request.rank for request in requests)
        of_all = self.tokens // len(requests)
        of_rank = {rank: max(min(of_all, self.rank_tokens[rank] // count), 0) for rank, count in counts.items()}
        return [min(of_rank[request.rank], self.useful[request]) for request in requests]

    def without(self, drafts: Drafts) -> "DraftRoom":
        """What is left for others."""
        taken = Counter[int]()
        for request, tokens in drafts.items():
            taken[request.rank] += len(tokens)
        useful = {request: most for request, most in self.useful.items() if request not in drafts}
        rank_tokens = [tokens - taken[rank] for rank, tokens in enumerate(self.rank_tokens)]
        return DraftRoom(useful, self.tokens - taken.total(), rank_tokens)


Draft = Callable[[DraftRoom], Drafts]
"""Called once a step at most, when its rows are made, so that nobody drafts for what has no room. May take its time."""


def draft_room(rows: Iterable[ScheduledRow], tokens: int, rank_tokens: Sequence[int], chunk_tokens: int) -> DraftRoom:
    """The room in a step with these rows, each of `chunk_tokens` at most."""
    useful = {row.request: min(most, chunk_tokens - 1) for row in rows if (most := useful_drafts(row))}
    return DraftRoom(useful, tokens, rank_tokens)


def useful_drafts(row: ScheduledRow) -> int:
    """How many drafts a row can have, at most.

    None unless all tokens of its request but the last are computed, that one is of its answer, and nothing of it is in
    flight. With n drafts n + 1 tokens are drawn: they end where its length does.
    """
    request, start, tokens, _, _ = row
    known = len(request.tokens)
    if not (tokens == 1 and request.computed == start == known - 1 >= request.prompt_tokens):
        return 0
    return request.computed_at_end - known


def with_drafts(row: ScheduledRow, drafts: tuple[int, ...], cache: KVCacheManager) -> ScheduledRow:
    """The row with as many of the drafts as there is use and room for, blocks for them allocated: of those only that
    the class of its request may take anyway, and nobody gives way."""
    drafts = drafts[: useful_drafts(row)]
    if not drafts:
        return row
    request, start, _, _, _ = row
    known = len(request.tokens)
    if not cache.grow(request, known + len(drafts)):
        drafts = drafts[: len(request.block_table) * BLOCK_TOKENS - known]
    request.scheduled = known + len(drafts)
    return scheduled_row((request, start, 1 + len(drafts), True, drafts))
