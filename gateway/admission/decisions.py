"""Results that follow from the counters, the same for every store."""

from collections.abc import Sequence

from gateway.admission.model import Hold, HoldRefusal, LimitState, Quota, Use
from gateway.admission.windows import LimitWindow, leaves_at_ms

OPEN_RETRY_MS = 1_000
"""`retry_after_ms` for a concurrency limit. When a slot is freed is unknown, so this is a guess."""


def state_of(quota: Quota, used: int, held: int, newest: int | None, now_ms: int) -> LimitState:
    """The state of a quota. `newest`: mark of the newest bucket that counts; None: no bucket counts."""
    leaves = None if newest is None else leaves_at_ms(quota.scope.measure.window, newest)
    return LimitState(quota, used, held, 0 if leaves is None else leaves - now_ms)


def refusal_of(blocked: Sequence[tuple[Quota, int | None]], states: tuple[LimitState, ...], now_ms: int) -> HoldRefusal:
    """The refusal for `blocked`: quotas without room, each with the mark of the bucket whose leaving makes room (None:
    never)."""
    waits = []
    for quota, mark in blocked:
        waits.append((quota, None if mark is None else _wait_ms(quota.scope.measure.window, mark, now_ms)))
    quota, wait = max(waits, key=lambda pair: float("inf") if pair[1] is None else pair[1])
    return HoldRefusal(quota, wait, states)


def _wait_ms(window: LimitWindow, mark: int, now_ms: int) -> int | None:
    """Milliseconds until the bucket with this mark leaves the window. None: never, as a balance does not refill with
    time."""
    if window is LimitWindow.EVER:
        return None
    leaves = leaves_at_ms(window, mark)
    return OPEN_RETRY_MS if leaves is None else leaves - now_ms


def exceeds(hold: Hold, use: Use) -> bool:
    """Whether more was used of some counter than was held."""
    return any(use.of(demand.quota.scope.measure) > demand.amount(hold.granted_tokens) for demand in hold.demands)
