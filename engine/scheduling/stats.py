"""What a scheduler says of itself, for metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.memory.kv_cache import KVCacheManager
from engine.request import ServiceClass
from engine.scheduling.ledger import ClassAccount, Ledger
from engine.scheduling.roster import Roster


@dataclass(frozen=True, slots=True)
class ClassStats:
    """One class: what it holds now, and what came of it since the scheduler was made.

    `attributed_ns` are the class's part of the time of all steps; over all classes they add up to it exactly. Of them,
    `recompute_ns` went into computing again the `recomputed_tokens` that this class took from others by preemption.
    `cached_blocks` are free blocks whose content it was the last to use; `reserved_blocks` are what of its reserve it
    does not hold, out of reach of the classes below; `missing_blocks` what of that is taken all the same, which is 0
    but for a glimpse into the middle of a step. `queue_age_ns` is how long a request has waited by now, since it
    came or was preempted last: the longest of all. `wasted_rows` were computed for nobody, as their requests had ended
    by then, or were in a step for which there was no room; their time, `wasted_ns`, is in `attributed_ns` and in no
    request's. `itl_limited_steps` had less prefill than there was, for the class's target for the time between tokens.

    `fairness` is Jain's index of the service in the last minute (as `fair_queue` counts it) over the `active_tenants`:
    those that were served within it or wait now. It judges between tenants that want all they can get: one that asks
    for little lowers it, too.
    """

    name: str
    running: int
    waiting: int
    queue_age_ns: int
    held_blocks: int
    reserved_blocks: int
    cached_blocks: int
    missing_blocks: int
    attributed_ns: int
    recompute_ns: int
    recomputed_tokens: int
    preemptions_caused: int
    preemptions_suffered: int
    active_tenants: int
    fairness: float
    wasted_rows: int
    wasted_ns: int
    itl_limited_steps: int


@dataclass(frozen=True, slots=True)
class DraftStats:
    """What one proposer drafted for one class.

    `proposed_total` drafts were verified, of which `accepted_total` came true; `acceptance` is their share of late.
    `depth` is the mean, over the latest steps, of the most drafts that a request had; 0 while there are none.
    """

    proposer: str
    service_class: str
    depth: float
    proposed_total: int
    accepted_total: int
    acceptance: float


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What drafts have brought since the model was loaded.

    `saved_ns` is the time that the same tokens would have taken without them, as the policy sees it, less what they
    took; it falls where they do not pay. `drafting_ns` is the time of each proposer, whatever came of it.
    """

    saved_ns: int
    drafting_ns: Mapping[str, int]
    drafts: tuple[DraftStats, ...]


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """What the scheduler holds now, and what it has done since it was made (`_total`). `classes` from the highest.

    `paused` requests are not read and not computed; `paused_ns_total` is the time of the pauses that have ended.
    """

    running: int
    waiting: int
    paused: int
    free_blocks: int
    num_blocks: int
    steps_total: int
    scheduled_tokens_total: int
    cached_tokens_total: int
    preemptions_total: int
    pauses_total: int
    paused_ns_total: int
    failures_total: int
    wasted_rows_total: int
    classes: tuple[ClassStats, ...] = ()
    speculation: SpeculationStats | None = None
    """What became of drafts, where there are any."""


def class_stats(
    classes: Sequence[ServiceClass],
    roster: Roster,
    cache: KVCacheManager,
    ledger: Ledger,
    itl_limited_steps: Sequence[int],
    now_ns: int,
) -> tuple[ClassStats, ...]:
    """One for each class, from the highest. May be called while another thread steps. O(classes)."""
    return tuple(
        _class_stats(rank, each.name, roster, cache, ledger.accounts[rank], itl_limited_steps[rank], now_ns)
        for rank, each in enumerate(classes)
    )


def _class_stats(
    rank: int,
    name: str,
    roster: Roster,
    cache: KVCacheManager,
    account: ClassAccount,
    itl_limited_steps: int,
    now_ns: int,
) -> ClassStats:
    oldest_ns = roster.waiting_ages[rank].oldest_ns
    return ClassStats(
        name=name,
        running=len(roster.running.ranks[rank]),
        waiting=roster.loads[rank].waiting_requests,
        queue_age_ns=0 if oldest_ns is None else max(0, now_ns - oldest_ns),
        held_blocks=cache.held_blocks(rank),
        reserved_blocks=cache.unused_reserve(rank),
        cached_blocks=cache.cached_blocks(rank),
        missing_blocks=cache.missing_reserve(rank),
        attributed_ns=account.attributed_ns,
        recompute_ns=account.recompute_ns,
        recomputed_tokens=account.recomputed_tokens,
        preemptions_caused=account.preemptions_caused,
        preemptions_suffered=account.preemptions_suffered,
        active_tenants=roster.service[rank].active_tenants(now_ns),
        fairness=roster.service[rank].fairness(now_ns),
        wasted_rows=account.wasted_rows,
        wasted_ns=account.wasted_ns,
        itl_limited_steps=itl_limited_steps,
    )
