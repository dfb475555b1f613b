"""What of a conversation goes when it outgrows its window.

The oldest turns go, whole; the system prompt and what the client has just sent never do. They go in a large step, down
to `LOW_WATER` of the limit, and then none for as many turns as fill the rest: meanwhile each prompt begins with all of
the one before it, and hits the prefix cache. Were one turn dropped at a time, each prompt would begin differently.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

LOW_WATER = 0.5
"""What a step leaves, as a share of the limit."""
MAX_ANSWER_ROOM_TOKENS = 1024
ANSWER_ROOM = 0.25
"""Room for an answer whose client sets no length: this share of the window, up to `MAX_ANSWER_ROOM_TOKENS`."""


@dataclass(frozen=True, slots=True)
class Size:
    """Of a prompt in the served model's tokens, as its template renders it, and of the history in bytes of JSON."""

    tokens: int
    bytes: int

    def within(self, bound: "Size") -> bool:
        return self.tokens <= bound.tokens and self.bytes <= bound.bytes


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """`limit` is what a prompt may have; one over it is cut to `target` where that can be."""

    limit: Size
    target: Size

    @classmethod
    def of(cls, context_tokens: int, answer_tokens: int | None, max_bytes: int) -> "ContextWindow":
        """`context_tokens` bounds prompt and answer together; `answer_tokens` is what the client asks for."""
        room = answer_tokens
        if room is None:
            room = min(int(context_tokens * ANSWER_ROOM), MAX_ANSWER_ROOM_TOKENS)
        limit = Size(max(0, context_tokens - room), max_bytes)
        return cls(limit, Size(int(limit.tokens * LOW_WATER), int(limit.bytes * LOW_WATER)))


async def turns_to_drop(droppable: int, window: ContextWindow, size_without: Callable[[int], Awaitable[Size]]) -> int:
    """How many of the oldest turns go from a conversation that is over the window's limit.

    As few as meet the target; where not even all of the `droppable` do, as few as meet the limit; where none do, all.
    `size_without` falls as its argument grows, and costs a tokenisation: it is asked O(log droppable) times.
    """
    for bound in (window.target, window.limit):
        if (await size_without(droppable)).within(bound):
            return await _fewest(droppable, bound, size_without)
    return droppable


async def _fewest(enough: int, bound: Size, size_without: Callable[[int], Awaitable[Size]]) -> int:
    low, high = 0, enough
    while low < high:
        middle = (low + high) // 2
        if (await size_without(middle)).within(bound):
            high = middle
        else:
            low = middle + 1
    return low
