"""Drafts in a step: which requests can have some, how many fit, and the rows that carry them."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.config import BLOCK_TOKENS
from engine.memory.kv_cache import KVCacheManager
from engine.request import Request
from engine.scheduling.plan import ScheduledRow, scheduled_row

Drafts = Mapping[Request, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class DraftCapacity:
    """The capacity that a step has left for drafts when all its rows are planned.

    `useful`: the requests that can have drafts, in row order, each with the maximum number that it could use.
    `tokens`: the maximum number of drafts in the step; `rank_tokens`: the same for each class, by rank.
    """

    useful: Mapping[Request, int]
    tokens: int
    rank_tokens: Sequence[int]

    def shares(self, requests: Sequence[Request]) -> list[int]:
        """The drafts of each request when all get equally many. All 0 where the capacity is below one per request: the
        step is then full of tokens that requests wait for."""
        if not requests:
            return []
        counts = Counter(request.rank for request in requests)
        of_all = self.tokens // len(requests)
        of_rank = {rank: max(min(of_all, self.rank_tokens[rank] // count), 0) for rank, count in counts.items()}
        return [min(of_rank[request.rank], self.useful[request]) for request in requests]

    def without(self, drafts: Drafts) -> "DraftCapacity":
        """The capacity that is left after these drafts, for the other requests."""
        taken = Counter[int]()
        for request, tokens in drafts.items():
            taken[request.rank] += len(tokens)
        useful = {request: count for request, count in self.useful.items() if request not in drafts}
        rank_tokens = [tokens - taken[rank] for rank, tokens in enumerate(self.rank_tokens)]
        return DraftCapacity(useful, self.tokens - taken.total(), rank_tokens)


Draft = Callable[[DraftCapacity], Drafts]
"""Called at most once per step, when all rows are planned, so that no draft is made that does not fit. May be slow."""


def draft_capacity(
    rows: Iterable[ScheduledRow], tokens: int, rank_tokens: Sequence[int], chunk_tokens: int
) -> DraftCapacity:
    """The capacity of a step with these rows. A row has at most `chunk_tokens` tokens."""
    useful = {row.request: min(count, chunk_tokens - 1) for row in rows if (count := useful_drafts(row))}
    return DraftCapacity(useful, tokens, rank_tokens)


def useful_drafts(row: ScheduledRow) -> int:
    """The maximum number of drafts that a row can use.

    0 unless the row computes the request's last token, that token is an output token, and no other row of the request
    is in flight. With n drafts a row samples n + 1 tokens, which must not exceed the request's length.
    """
    request, start, tokens, _, _ = row
    known = len(request.tokens)
    if not (tokens == 1 and request.computed == start == known - 1 >= request.prompt_tokens):
        return 0
    return request.computed_at_end - known


def can_have_drafts_next(row: ScheduledRow) -> bool:
    """Whether the request of a row in flight can have drafts in the next step, if that is planned when the row's result
    is known: the row samples a token, and at least two more may follow."""
    request, start, tokens, samples, drafts = row
    known = start + tokens - len(drafts) + 1
    return samples and known < request.computed_at_end


def can_be_followed(row: ScheduledRow) -> bool:
    """Whether a row of the same request may be launched before the number of the row's accepted drafts is known.

    That row is planned as if all were accepted: `scheduled` is then an upper bound, and blocks are allocated for it.
    The executor moves the row back by the rejected drafts, and the commit corrects `scheduled`. It is excluded by what
    the host has to know of the tokens in between: for a grammar, penalties, and as long as it has not its `min_tokens`.
    """
    request, params = row.request, row.request.params
    penalised = bool(params.presence_penalty or params.frequency_penalty) or params.repetition_penalty != 1
    too_short = params.min_tokens > request.output_tokens + 1
    return not row.drafts or not (request.matcher is not None or penalised or too_short)


def with_drafts(row: ScheduledRow, drafts: tuple[int, ...], cache: KVCacheManager) -> ScheduledRow:
    """The row with as many of the drafts as are useful and fit, their blocks allocated. Only blocks that are available
    to the request's class are used; no request is preempted for drafts."""
    drafts = drafts[: useful_drafts(row)]
    if not drafts:
        return row
    request, start, _, _, _ = row
    known = len(request.tokens)
    if not cache.grow(request, known + len(drafts)):
        drafts = drafts[: len(request.block_table) * BLOCK_TOKENS - known]
    request.scheduled = known + len(drafts)
    return scheduled_row((request, start, 1 + len(drafts), True, drafts))
