"""The figures of a moment. None: the server does not export the metric."""

from dataclasses import dataclass

from gateway.tools.top.sample import Between, Estimate, Sample, quantile

MODEL, CLASS, TIER, PROPOSER = "gen_ai_request_model", "turnpike_class", "turnpike_tier", "turnpike_proposer"
_DURATION = "gen_ai_server_request_duration_seconds"
_TOKENS = "gen_ai_client_token_usage"
OUTCOMES = ("answered", "refused", "turned_away", "client_gone", "failed")


@dataclass(frozen=True, slots=True)
class Latency:
    """Quantiles of `n` observations, in seconds."""

    n: int
    p50: Estimate | None
    p95: Estimate | None
    p99: Estimate | None


@dataclass(frozen=True, slots=True)
class ClassView:
    """A service class of a model. Blocks are of the model's KV memory. Reserved blocks are a claim on free ones, some
    of which may be cached."""

    name: str
    requests_per_s: float | None
    input_per_s: float | None
    output_per_s: float | None
    running: float | None
    waiting: float | None
    queue_age_s: float | None
    held: float | None
    reserved: float | None
    cached: float | None
    preempted_per_s: float | None
    shed_per_s: float | None
    ttft: Latency
    tpot: Latency
    gap: Latency
    """Time between two deltas of a stream."""


@dataclass(frozen=True, slots=True)
class DraftView:
    """A draft proposer. `depth`: maximum draft depth. `right`: share of its drafts that were accepted."""

    proposer: str
    depth: float | None
    right: float | None


@dataclass(frozen=True, slots=True)
class ModelView:
    """`found`: share of prompt tokens that were prefix cache hits."""

    name: str
    running: float | None
    waiting: float | None
    paused: float | None
    steps_per_s: float | None
    preempted_per_s: float | None
    input_per_s: float | None
    output_per_s: float | None
    found: float | None
    blocks: float | None
    free: float | None
    drafts: tuple[DraftView, ...]
    classes: tuple[ClassView, ...]


@dataclass(frozen=True, slots=True)
class View:
    version: str
    ready: float | None
    healthy: float | None
    resident_bytes: float | None
    cpu_share: float | None
    outcomes_per_s: tuple[float | None, ...]
    """Counts in the order of `OUTCOMES`."""
    backlog: float | None
    backlog_age_s: float | None
    failing_s: float | None
    journal_trouble: float | None
    breaker_open: float | None
    holds: float | None
    models: tuple[ModelView, ...]


def view_of(last: Between, of_late: Between) -> View:
    """A view: rates of the `last` interval, shares and latencies of a longer one with enough requests."""
    now = last.after
    outcomes = tuple(last.rate("turnpike_requests_total", outcome=outcome) for outcome in OUTCOMES)
    return View(
        version=next(iter(now.values_of("version", "turnpike_build_info")), ""),
        ready=now.total("turnpike_ready"),
        healthy=now.total("turnpike_engine_healthy"),
        resident_bytes=now.total("process_resident_memory_bytes"),
        cpu_share=last.rate("process_cpu_seconds_total"),
        outcomes_per_s=outcomes,
        backlog=now.total("turnpike_usage_backlog_events"),
        backlog_age_s=now.total("turnpike_usage_backlog_age_seconds"),
        failing_s=now.total("turnpike_usage_failing_seconds"),
        journal_trouble=now.total("turnpike_usage_journal_trouble"),
        breaker_open=now.total("turnpike_limits_breaker_open"),
        holds=now.total("turnpike_admission_open_holds"),
        models=tuple(
            _model(name, last, of_late)
            for name in now.values_of(MODEL, "turnpike_sequences_running", f"{_DURATION}_count")
        ),
    )


def _model(name: str, last: Between, of_late: Between) -> ModelView:
    now, label = last.after, {MODEL: name}
    found = of_late.grown("turnpike_prefix_hit_tokens_total", **label)
    computed = of_late.grown("turnpike_scheduled_tokens_total", **label)
    classes = {*now.values_of(CLASS, "turnpike_class_sequences_running", **label)}
    classes |= {*now.values_of(TIER, f"{_DURATION}_count", **label)}
    return ModelView(
        name=name,
        running=now.total("turnpike_sequences_running", **label),
        waiting=now.total("turnpike_sequences_waiting", **label),
        paused=now.total("turnpike_sequences_paused", **label),
        steps_per_s=last.rate("turnpike_steps_total", **label),
        preempted_per_s=last.rate("turnpike_preemptions_total", **label),
        input_per_s=last.rate(f"{_TOKENS}_sum", **label, gen_ai_token_type="input"),
        output_per_s=last.rate(f"{_TOKENS}_sum", **label, gen_ai_token_type="output"),
        found=_share(found, None if found is None or computed is None else found + computed),
        blocks=now.total("turnpike_kv_blocks", **label),
        free=now.total("turnpike_kv_blocks_free", **label),
        drafts=tuple(
            _drafts(proposer, name, now, of_late)
            for proposer in now.values_of(PROPOSER, "turnpike_draft_tokens_total", **label)
        ),
        classes=tuple(_class(each, name, last, of_late) for each in sorted(classes)),
    )


def _class(name: str, model: str, last: Between, of_late: Between) -> ClassView:
    now = last.after
    of_class, of_tier = {MODEL: model, CLASS: name}, {MODEL: model, TIER: name}
    return ClassView(
        name=name,
        requests_per_s=last.rate(f"{_DURATION}_count", **of_tier),
        input_per_s=last.rate(f"{_TOKENS}_sum", **of_tier, gen_ai_token_type="input"),
        output_per_s=last.rate(f"{_TOKENS}_sum", **of_tier, gen_ai_token_type="output"),
        running=now.total("turnpike_class_sequences_running", **of_class),
        waiting=now.total("turnpike_class_sequences_waiting", **of_class),
        queue_age_s=now.most("turnpike_class_queue_age_seconds", **of_class),
        held=now.total("turnpike_class_kv_blocks_held", **of_class),
        reserved=now.total("turnpike_class_kv_blocks_reserved", **of_class),
        cached=now.total("turnpike_class_kv_blocks_cached", **of_class),
        preempted_per_s=last.rate("turnpike_class_preemptions_suffered_total", **of_class),
        shed_per_s=last.rate("turnpike_class_sheds_total", **of_class),
        ttft=_latency(of_late, "gen_ai_server_time_to_first_token_seconds", of_tier),
        tpot=_latency(of_late, "gen_ai_server_time_per_output_token_seconds", of_tier),
        gap=_latency(of_late, "turnpike_inter_token_seconds", of_tier),
    )


def _drafts(proposer: str, model: str, now: Sample, of_late: Between) -> DraftView:
    labels = {MODEL: model, PROPOSER: proposer}
    return DraftView(
        proposer=proposer,
        depth=now.most("turnpike_speculation_depth", **labels),
        right=_share(
            of_late.grown("turnpike_accepted_draft_tokens_total", **labels),
            of_late.grown("turnpike_draft_tokens_total", **labels),
        ),
    )


def _latency(of_late: Between, histogram: str, labels: dict[str, str]) -> Latency:
    buckets = of_late.buckets(histogram, **labels)
    n = round(buckets[-1][1]) if buckets else 0
    return Latency(n, quantile(buckets, 0.5), quantile(buckets, 0.95), quantile(buckets, 0.99))


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
