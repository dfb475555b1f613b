"""What follows from the counters, whichever store keeps them."""

from collections.abc import Sequence

from gateway.admission.model import Hold, HoldRefusal, LimitState, Quota, Use
from gateway.admission.windows import LimitWindow, leaves_at_ms

OPEN_RETRY_MS = 1_000
"""When to come back for a slot that another request holds: nobody knows; a guess."""


def state_of(quota: Quota, used: int, held: int, newest: int | None, now_ms: int) -> LimitState:
    """`newest` is the mark of the newest bucket that counts, if any does."""
    leaves = None if newest is None else leaves_at_ms(quota.scope.measure.window, newest)
    return LimitState(quota, used, held, 0 if leaves is None else leaves - now_ms)


def refusal_of(blocked: Sequence[tuple[Quota, int | None]], states: tuple[LimitState, ...], now_ms: int) -> HoldRefusal:
    """The refusal for quotas without room and, for each, the mark of the bucket after whose leaving there is (None:
    never)."""
    waits = []
    for quota, mark in blocked:
        waits.append((quota, None if mark is None else _wait_ms(quota.scope.measure.window, mark, now_ms)))
    quota, wait = max(waits, key=lambda each: float("inf") if each[1] is None else each[1])
    return HoldRefusal(quota, wait, states)


def _wait_ms(window: LimitWindow, mark: int, now_ms: int) -> int | None:
    """Until the bucket with this mark has left; None: never, as no time brings a balance back."""
    if window is LimitWindow.EVER:
        return None
    leaves = leaves_at_ms(window, mark)
    return OPEN_RETRY_MS if leaves is None else leaves - now_ms


def exceeds(hold: Hold, use: Use) -> bool:
    """Whether more was used of some counter than was held of it."""
    return any(use.of(demand.quota.scope.measure) > demand.amount(hold.granted_tokens) for demand in hold.demands)
