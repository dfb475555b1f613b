"""Drafts in a step: who can have some, and how many there is room for."""

from engine.config import BLOCK_TOKENS
from engine.memory.kv_cache import KVCacheManager
from engine.request import Request
from engine.scheduling.plan import ScheduledRow, scheduled_row


def useful_drafts(request: Request) -> int:
    """How many drafts a running request can have in its next row, at most.

    None unless all its tokens but the last are computed, that one is of its answer, and nothing of it is in flight.
    With n drafts n + 1 tokens are drawn: they end where its length does.
    """
    known = len(request.tokens)
    if not request.scheduled == request.computed == known - 1 >= request.prompt_tokens:
        return 0
    return request.computed_at_end - known


def with_drafts(row: ScheduledRow, drafts: tuple[int, ...], cache: KVCacheManager) -> ScheduledRow:
    """The row with as many of the drafts as there is use and room for, blocks for them allocated: of those only that
    the class of its request may take anyway, and nobody gives way."""
    request, start, tokens, _, _ = row
    known = len(request.tokens)
    if not (tokens == 1 and request.computed == start == known - 1 >= request.prompt_tokens):
        return row
    drafts = drafts[: request.computed_at_end - known]
    if not cache.grow(request, known + len(drafts)):
        drafts = drafts[: len(request.block_table) * BLOCK_TOKENS - known]
    request.scheduled = known + len(drafts)
    return scheduled_row((request, start, 1 + len(drafts), True, drafts))
