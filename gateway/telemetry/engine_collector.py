"""Collector of the engine's Prometheus metrics: one row of a table per metric."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.telemetry.model_stats import AdapterStats, LaunchStats, ModelStats, SpeculationStats, StateStats, TierStats

MODEL_LABEL = "gen_ai_request_model"
CLASS_LABEL = "turnpike_class"
_PROPOSER = "turnpike_proposer"
_EXPERT = "turnpike_expert"
_TIER = "turnpike_tier"
_LAUNCH = "turnpike_launch"

_ENGINE_GAUGES = (
    ("running", "turnpike_sequences_running", "Running sequences"),
    ("waiting", "turnpike_sequences_waiting", "Waiting sequences"),
    ("paused", "turnpike_sequences_paused", "Sequences paused because their client does not read"),
    ("num_blocks", "turnpike_kv_blocks", "Blocks of KV memory in total"),
    ("free_blocks", "turnpike_kv_blocks_free", "Blocks not held by a sequence; cached prefixes count as free"),
)
_ENGINE_COUNTERS = (
    ("steps_total", "turnpike_steps", "Forward passes"),
    ("scheduled_tokens_total", "turnpike_scheduled_tokens", "Tokens computed, of prompts and answers"),
    ("cached_tokens_total", "turnpike_prefix_hit_tokens", "Prompt tokens found in the prefix cache"),
    ("preemptions_total", "turnpike_preemptions", "Preemptions of sequences"),
    ("pauses_total", "turnpike_pauses", "Pauses of sequences because their client did not read"),
    ("failures_total", "turnpike_failures", "Sequences that ended with an engine error"),
)
_ENGINE_SECONDS = (("paused_ns_total", "turnpike_paused_seconds", "Total duration of ended pauses"),)

_CLASS_GAUGES = (
    ("running", "turnpike_class_sequences_running", "Running sequences of a class"),
    ("waiting", "turnpike_class_sequences_waiting", "Waiting sequences of a class"),
    ("held_blocks", "turnpike_class_kv_blocks_held", "Blocks held by the sequences of a class"),
    ("reserved_blocks", "turnpike_class_kv_blocks_reserved", "Blocks of a class's reserve that it does not hold"),
    ("cached_blocks", "turnpike_class_kv_blocks_cached", "Free blocks whose content a class used last"),
    (
        "missing_blocks",
        "turnpike_class_kv_blocks_missing",
        "Blocks of a class's reserve that are not available; above 0 is a bug in the engine",
    ),
    ("active_tenants", "turnpike_class_tenants_active", "Tenants that were served in the last 60 s or are waiting"),
    (
        "fairness",
        "turnpike_class_fairness",
        "Jain's index (sum x)^2 / (n sum x^2) over a class's n active tenants: x is a tenant's computed prompt tokens "
        "plus twice its answer tokens in the last 60 s. 1 is even, 1/n is all for one tenant; tenants that ask for "
        "less than their share lower it, too",
    ),
)
_CLASS_GAUGES_SECONDS = (
    ("queue_age_ns", "turnpike_class_queue_age_seconds", "Age of the oldest waiting sequence of a class"),
)
_CLASS_COUNTERS = (
    (
        "recomputed_tokens",
        "turnpike_class_recomputed_tokens",
        "Tokens recomputed after preemptions that the class caused",
    ),
    ("preemptions_caused", "turnpike_class_preemptions_caused", "Preemptions of other classes for this class"),
    ("preemptions_suffered", "turnpike_class_preemptions_suffered", "Preemptions of this class for another class"),
    ("wasted_rows", "turnpike_class_wasted_rows", "Rows of steps whose results were discarded"),
    (
        "itl_limited_steps",
        "turnpike_class_itl_limited_steps",
        "Steps with prefill limited by the class's target for the time between tokens",
    ),
)
_CLASS_SECONDS = (
    ("attributed_ns", "turnpike_class_engine_seconds", "Step time attributed to the class"),
    ("recompute_ns", "turnpike_class_recompute_seconds", "Part of the attributed time spent on recomputation"),
    ("wasted_ns", "turnpike_class_wasted_seconds", "Part of the attributed time spent on discarded rows"),
)

_STATE_GAUGES = (
    ("slots", "turnpike_state_slots", "Slots for recurrent states in total"),
    ("used", "turnpike_state_slots_used", "State slots of running sequences and of states being saved"),
    ("kept", "turnpike_state_slots_kept", "State slots with saved states; they are evicted when slots are needed"),
)
_STATE_COUNTERS = (
    ("hits_total", "turnpike_state_hits", "Sequences that began or resumed with a saved state"),
    ("evictions_total", "turnpike_state_evictions", "Saved states evicted"),
)

_ADAPTER_GAUGES = (
    ("slots", "turnpike_adapter_slots", "Slots for adapters in total"),
    ("resident", "turnpike_adapters_resident", "Adapters that have a slot"),
    ("waiting", "turnpike_adapter_sequences_waiting", "Sequences that wait for their adapter to be loaded"),
)
_ADAPTER_COUNTERS = (
    ("loads_total", "turnpike_adapter_loads", "Adapters loaded into a slot"),
    ("evictions_total", "turnpike_adapter_evictions", "Adapters evicted from their slot"),
    ("failures_total", "turnpike_adapter_failures", "Adapters that could not be loaded"),
    ("load_seconds_total", "turnpike_adapter_load_seconds", "Time spent on loading adapters"),
)

_TIER_GAUGES = (
    ("capacity_bytes", "turnpike_kv_tier_capacity_bytes", "Bytes of KV blocks that a tier below memory holds"),
    ("used_bytes", "turnpike_kv_tier_used_bytes", "Bytes of KV blocks stored in a tier"),
    ("waiting", "turnpike_kv_tier_sequences_waiting", "Sequences that wait for blocks from a tier"),
)
_TIER_COUNTERS = (
    ("written_bytes_total", "turnpike_kv_tier_written_bytes", "Bytes of KV blocks written to a tier"),
    ("read_bytes_total", "turnpike_kv_tier_read_bytes", "Bytes of KV blocks fetched from a tier"),
    ("hit_blocks_total", "turnpike_kv_tier_hit_blocks", "KV blocks fetched from a tier"),
    ("failed_blocks_total", "turnpike_kv_tier_failed_reads", "Fetches that ended at a block that could not be read"),
    ("failed_writes_total", "turnpike_kv_tier_failed_writes", "KV blocks that could not be written to a tier"),
    ("evictions_total", "turnpike_kv_tier_evictions", "KV blocks of a tier that were overwritten by others"),
)
_TIER_SECONDS = (
    (
        "saved_ns_total",
        "turnpike_kv_tier_saved_seconds",
        "Predicted time of computing less the wait, of faster fetches",
    ),
    ("lost_ns_total", "turnpike_kv_tier_lost_seconds", "Wait less the predicted time of computing, of slower fetches"),
)

_DRAFT_GAUGES = (
    ("depth", "turnpike_speculation_depth", "Maximum draft depth per request, mean of the latest steps"),
    ("acceptance", "turnpike_speculation_acceptance", "Acceptance rate of the latest drafts"),
)
_DRAFT_COUNTERS = (
    ("proposed_total", "turnpike_draft_tokens", "Draft tokens proposed and verified"),
    ("accepted_total", "turnpike_accepted_draft_tokens", "Draft tokens accepted"),
)


class EngineCollector(Collector):
    """Reads the engine's counts on each scrape, so that the step loop does no work for metrics."""

    def __init__(self, stats: Callable[[], Mapping[str, ModelStats]]) -> None:
        self._stats = stats

    def describe(self) -> Iterator[Metric]:
        """Names without values: registering must not need a running engine."""
        yield from _families({})

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        yield from _families(self._stats())


def _families(stats: Mapping[str, ModelStats]) -> Iterator[Metric]:
    for field, name, meaning in _ENGINE_GAUGES:
        yield _fill(GaugeMetricFamily(name, meaning, labels=[MODEL_LABEL]), field, stats, 1)
    for field, name, meaning in _ENGINE_COUNTERS:
        yield _fill(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL]), field, stats, 1)
    for field, name, meaning in _ENGINE_SECONDS:
        yield _fill(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL]), field, stats, 1e-9)
    for field, name, meaning in _CLASS_GAUGES:
        yield _by_class(GaugeMetricFamily(name, meaning, labels=[MODEL_LABEL, CLASS_LABEL]), field, stats, 1)
    for field, name, meaning in _CLASS_GAUGES_SECONDS:
        yield _by_class(GaugeMetricFamily(name, meaning, labels=[MODEL_LABEL, CLASS_LABEL]), field, stats, 1e-9)
    for field, name, meaning in _CLASS_COUNTERS:
        yield _by_class(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL, CLASS_LABEL]), field, stats, 1)
    for field, name, meaning in _CLASS_SECONDS:
        yield _by_class(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL, CLASS_LABEL]), field, stats, 1e-9)
    yield _expert_tokens(stats)
    yield _launches({model: counts.launches for model, counts in stats.items() if counts.launches is not None})
    states = {model: counts.states for model, counts in stats.items() if counts.states is not None}
    for field, name, meaning in _STATE_GAUGES:
        yield _fill(GaugeMetricFamily(name, meaning, labels=[MODEL_LABEL]), field, states, 1)
    for field, name, meaning in _STATE_COUNTERS:
        yield _fill(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL]), field, states, 1)
    adapters = {model: counts.adapters for model, counts in stats.items() if counts.adapters is not None}
    for field, name, meaning in _ADAPTER_GAUGES:
        yield _fill(GaugeMetricFamily(name, meaning, labels=[MODEL_LABEL]), field, adapters, 1)
    for field, name, meaning in _ADAPTER_COUNTERS:
        yield _fill(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL]), field, adapters, 1)
    tiers = {model: counts.tier for model, counts in stats.items() if counts.tier is not None}
    for field, name, meaning in _TIER_GAUGES:
        yield _by_tier(GaugeMetricFamily(name, meaning, labels=[MODEL_LABEL, _TIER]), field, tiers, 1)
    for field, name, meaning in _TIER_COUNTERS:
        yield _by_tier(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL, _TIER]), field, tiers, 1)
    for field, name, meaning in _TIER_SECONDS:
        yield _by_tier(CounterMetricFamily(name, meaning, labels=[MODEL_LABEL, _TIER]), field, tiers, 1e-9)
    speculation = {model: counts.speculation for model, counts in stats.items() if counts.speculation is not None}
    yield from _speculation_families(speculation)


def _expert_tokens(stats: Mapping[str, ModelStats]) -> Metric:
    family = CounterMetricFamily(
        "turnpike_expert_tokens",
        "Tokens computed by each expert of a mixture, over all layers",
        labels=[MODEL_LABEL, _EXPERT],
    )
    for model, counts in stats.items():
        for expert, tokens in enumerate(counts.expert_tokens):
            family.add_metric([model, str(expert)], tokens)
    return family


def _launches(stats: Mapping[str, LaunchStats]) -> Metric:
    family = CounterMetricFamily(
        "turnpike_launched_steps",
        "Steps on a GPU: replayed from a CUDA graph, or launched by kernel (decode, or prefill with prompt tokens)",
        labels=[MODEL_LABEL, _LAUNCH],
    )
    for model, counts in stats.items():
        for way, steps in (
            ("replayed", counts.replayed_total),
            ("decode", counts.decode_total),
            ("prefill", counts.prefill_total),
        ):
            family.add_metric([model, way], steps)
    return family


def _speculation_families(stats: Mapping[str, SpeculationStats]) -> Iterator[Metric]:
    saved = GaugeMetricFamily(
        "turnpike_speculation_saved_seconds",
        "Predicted time saved by drafts so far, over all tokens; falls while drafts do not pay",
        labels=[MODEL_LABEL],
    )
    spent = CounterMetricFamily(
        "turnpike_drafting_seconds", "Time spent on proposing drafts", labels=[MODEL_LABEL, _PROPOSER]
    )
    for model, counts in stats.items():
        saved.add_metric([model], counts.saved_ns * 1e-9)
        for proposer, drafting_ns in counts.drafting_ns.items():
            spent.add_metric([model, proposer], drafting_ns * 1e-9)
    yield saved
    yield spent
    labels = [MODEL_LABEL, _PROPOSER, CLASS_LABEL]
    for field, name, meaning in _DRAFT_GAUGES:
        yield _by_draft(GaugeMetricFamily(name, meaning, labels=labels), field, stats)
    for field, name, meaning in _DRAFT_COUNTERS:
        yield _by_draft(CounterMetricFamily(name, meaning, labels=labels), field, stats)


def _by_tier(
    family: GaugeMetricFamily | CounterMetricFamily, field: str, stats: Mapping[str, TierStats], unit: float
) -> Metric:
    for model, counts in stats.items():
        family.add_metric([model, counts.name], getattr(counts, field) * unit)
    return family


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily,
    field: str,
    stats: Mapping[str, ModelStats] | Mapping[str, StateStats] | Mapping[str, AdapterStats],
    unit: float,
) -> Metric:
    for model, counts in stats.items():
        family.add_metric([model], getattr(counts, field) * unit)
    return family


def _by_class(
    family: GaugeMetricFamily | CounterMetricFamily, field: str, stats: Mapping[str, ModelStats], unit: float
) -> Metric:
    for model, counts in stats.items():
        for of_class in counts.classes:
            family.add_metric([model, of_class.name], getattr(of_class, field) * unit)
    return family


def _by_draft(
    family: GaugeMetricFamily | CounterMetricFamily, field: str, stats: Mapping[str, SpeculationStats]
) -> Metric:
    for model, counts in stats.items():
        for draft in counts.drafts:
            family.add_metric([model, draft.proposer, draft.service_class], getattr(draft, field))
    return family
