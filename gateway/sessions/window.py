"""Which turns of a conversation are dropped when it outgrows its context window.

The oldest turns are dropped whole; the system prompt and the client's new messages never are. Turns are dropped in one
large step, down to `LOW_WATER` of the limit, and then none until the limit is reached again. In between each prompt
starts with the whole previous one and hits the prefix cache. If one turn were dropped at a time, every prompt would
start differently.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

LOW_WATER = 0.5
"""Share of the limit that a step keeps."""
MAX_ANSWER_ROOM_TOKENS = 1024
ANSWER_ROOM = 0.25
"""Share of the window reserved for an answer without a stated length, up to `MAX_ANSWER_ROOM_TOKENS`."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a conversation. `tokens`: tokens of its prompt, as the served model's template renders it. `bytes`: bytes
    of its history as JSON."""

    tokens: int
    bytes: int

    def within(self, bound: "Size") -> bool:
        """Whether neither number exceeds the bound's."""
        return self.tokens <= bound.tokens and self.bytes <= bound.bytes


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """Bounds of a conversation. `limit`: upper bound of a prompt. `target`: size to which a longer one is cut if
    possible."""

    limit: Size
    target: Size

    @classmethod
    def of(cls, context_tokens: int, answer_tokens: int | None, max_bytes: int) -> "ContextWindow":
        """The window of a request. `context_tokens`: bound of prompt and answer together. `answer_tokens`: the client's
        limit for the answer; None: not stated. `max_bytes`: bound of the history."""
        room = answer_tokens
        if room is None:
            room = min(int(context_tokens * ANSWER_ROOM), MAX_ANSWER_ROOM_TOKENS)
        limit = Size(max(0, context_tokens - room), max_bytes)
        return cls(limit, Size(int(limit.tokens * LOW_WATER), int(limit.bytes * LOW_WATER)))


async def turns_to_drop(droppable: int, window: ContextWindow, size_without: Callable[[int], Awaitable[Size]]) -> int:
    """Number of oldest turns to drop from a conversation above the window's limit.

    The fewest that meet the target; if all `droppable` do not, the fewest that meet the limit; if all do not meet that
    either, all. `size_without` is monotonic and costs a tokenisation; binary search calls it O(log droppable) times.
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
