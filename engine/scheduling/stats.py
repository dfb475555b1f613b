"""The scheduler's metrics."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.memory.kv_cache import KVCacheManager
from engine.memory.sequence_states import SequenceStates
from engine.memory.state_pool import StateUse
from engine.memory.tiers.stats import TierStats
from engine.request import ServiceClass
from engine.scheduling.adapter_queue import AdapterStats
from engine.scheduling.ledger import ClassAccount, Ledger
from engine.scheduling.plan import LaunchStats
from engine.scheduling.request_table import RequestTable


@dataclass(frozen=True, slots=True)
class ClassStats:
    """One class: its current state, and totals since the scheduler was created.

    `queue_age_ns`: the longest current wait, since arrival or the last preemption.
    `reserved_blocks`: the unused part of its reserve, unavailable to the classes below.
    `cached_blocks`: free blocks with content that this class held last.
    `missing_blocks`: reserved blocks that are in use by others; 0 except when read in the middle of a step.
    `attributed_ns`: its part of the time of all steps; over all classes the parts add up exactly.
    `recompute_ns`: the part of `attributed_ns` spent recomputing the `recomputed_tokens` of requests that this class
    preempted.
    `active_tenants`: tenants that were served in the last minute or wait now.
    `fairness`: Jain's index of the last minute's service, as `fair_queue` counts it, over the active tenants. It is
    meant for tenants with unlimited demand: a tenant that asks for little lowers it, too.
    `wasted_rows`: rows whose request had ended, or whose step ran out of device memory. Their time, `wasted_ns`, is in
    `attributed_ns` but in no request's.
    `itl_limited_steps`: steps whose prefill was cut for the class's target for the time between tokens.
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
    """The drafts of one proposer for one class.

    `proposed_total`: verified drafts; `accepted_total`: those accepted; `acceptance`: the recent rate.
    `depth`: the maximum drafts of one request in a step, averaged over recent steps; 0 for a step without drafts.
    """

    proposer: str
    service_class: str
    depth: float
    proposed_total: int
    accepted_total: int
    acceptance: float


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Totals of speculation since the model was loaded.

    `saved_ns`: the estimated time of the same tokens without drafts, less the time with them; it falls where drafts do
    not pay. `drafting_ns`: the time spent in each proposer.
    """

    saved_ns: int
    drafting_ns: Mapping[str, int]
    drafts: tuple[DraftStats, ...]


@dataclass(frozen=True, slots=True)
class StateStats:
    """The state slots of a model with recurrent layers, and totals since it was loaded.

    `used`: slots of running sequences, and those that a step in flight saves a state in. `kept`: snapshots. The other
    slots are free. `hits_total`: requests that began or resumed with a snapshot. `evictions_total`: snapshots that were
    evicted, for another state or with the block of their prefix.
    """

    slots: int
    used: int
    kept: int
    hits_total: int
    evictions_total: int


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """The scheduler's current state, and totals (`_total`) since it was created. `classes`: from the highest.

    `paused`: requests that are not computed because their clients do not read. `paused_ns_total`: the time of all
    pauses that have ended.
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
    """None for a model without drafts."""
    expert_tokens: tuple[int, ...] = ()
    """Tokens that each expert has computed, over all layers; empty for a model without experts."""
    states: StateStats | None = None
    """None for a model without recurrent layers."""
    launches: LaunchStats | None = None
    """None for a model on a CPU."""
    adapters: AdapterStats | None = None
    """None for a model that takes none."""
    tier: TierStats | None = None
    """None for a model without a second pool of KV blocks."""


def state_stats(states: SequenceStates) -> StateStats:
    """The stats of state slots. Thread-safe."""
    pool, counts = states.pool, states.pool.counts
    return StateStats(
        slots=pool.num_slots,
        used=counts[StateUse.RUNNING] + counts[StateUse.PENDING],
        kept=counts[StateUse.SNAPSHOT],
        hits_total=states.hits_total,
        evictions_total=pool.evictions_total,
    )


def class_stats(
    classes: Sequence[ServiceClass],
    requests: RequestTable,
    cache: KVCacheManager,
    ledger: Ledger,
    itl_limited_steps: Sequence[int],
    now_ns: int,
) -> tuple[ClassStats, ...]:
    """The stats of each class, from the highest. Thread-safe. O(classes)."""
    return tuple(
        _class_stats(rank, service_class.name, requests, cache, ledger.accounts[rank], itl_limited_steps[rank], now_ns)
        for rank, service_class in enumerate(classes)
    )


def _class_stats(
    rank: int,
    name: str,
    requests: RequestTable,
    cache: KVCacheManager,
    account: ClassAccount,
    itl_limited_steps: int,
    now_ns: int,
) -> ClassStats:
    oldest_ns = requests.waiting_ages[rank].oldest_ns
    return ClassStats(
        name=name,
        running=len(requests.running.ranks[rank]),
        waiting=requests.loads[rank].waiting_requests,
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
        active_tenants=requests.service[rank].active_tenants(now_ns),
        fairness=requests.service[rank].fairness(now_ns),
        wasted_rows=account.wasted_rows,
        wasted_ns=account.wasted_ns,
        itl_limited_steps=itl_limited_steps,
    )
