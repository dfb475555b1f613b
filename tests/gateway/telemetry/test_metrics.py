from dataclasses import fields, replace

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from engine.scheduling.stats import ClassStats, DraftStats, SchedulerStats, SpeculationStats
from gateway.telemetry.metrics import Metrics, ModelStats


def stats() -> dict[str, ModelStats]:
    counts = {field.name: number for number, field in enumerate(fields(SchedulerStats), start=1)}
    classes = {field.name: number for number, field in enumerate(fields(ClassStats), start=100)}
    own = {"classes": (ClassStats(**classes | {"name": "premium"}),), "speculation": None}
    return {"tiny": SchedulerStats(**counts | own)}


def samples(metrics: Metrics) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_the_engines_counts_are_read_when_asked() -> None:
    metrics = Metrics(stats)
    shown = samples(metrics)
    expected = stats()["tiny"]
    assert shown["turnpike_sequences_running"] == expected.running
    assert shown["turnpike_sequences_waiting"] == expected.waiting
    assert shown["turnpike_kv_blocks"] == expected.num_blocks
    assert shown["turnpike_kv_blocks_free"] == expected.free_blocks
    assert shown["turnpike_steps_total"] == expected.steps_total
    assert shown["turnpike_prefix_hit_tokens_total"] == expected.cached_tokens_total
    assert shown["turnpike_preemptions_total"] == expected.preemptions_total
    assert shown["process_resident_memory_bytes"] > 0


def test_what_became_of_drafts_is_told_by_who_proposed_them_and_for_which_class() -> None:
    drafts = (DraftStats("ngram", "premium", 2.5, 80, 60, 0.75), DraftStats("draft", "standard", 0.0, 10, 1, 0.1))
    speculation = SpeculationStats(saved_ns=-1_500_000_000, drafting_ns={"draft": 250_000_000}, drafts=drafts)
    metrics = Metrics(lambda: {"tiny": replace(stats()["tiny"], speculation=speculation)})
    families = text_string_to_metric_families(metrics.render().decode())
    shown = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert shown["turnpike_speculation_saved_seconds", "tiny"] == -1.5
    assert shown["turnpike_drafting_seconds_total", "tiny", "draft"] == 0.25
    assert shown["turnpike_speculation_depth", "tiny", "premium", "ngram"] == 2.5
    assert shown["turnpike_speculation_acceptance", "tiny", "standard", "draft"] == 0.1
    assert shown["turnpike_draft_tokens_total", "tiny", "premium", "ngram"] == 80
    assert shown["turnpike_accepted_draft_tokens_total", "tiny", "premium", "ngram"] == 60


def test_requests_are_named_as_opentelemetry_names_them() -> None:
    metrics = Metrics(dict)
    metrics.request_duration.labels("chat", "tiny", "premium", "").observe(0.5)
    metrics.time_to_first_token.labels("chat", "tiny", "premium").observe(0.1)
    metrics.time_per_output_token.labels("chat", "tiny", "premium").observe(0.01)
    metrics.token_usage.labels("chat", "tiny", "premium", "input").observe(7)
    shown = samples(metrics)
    assert shown["gen_ai_server_request_duration_seconds_sum"] == 0.5
    assert shown["gen_ai_server_time_to_first_token_seconds_sum"] == 0.1
    assert shown["gen_ai_server_time_per_output_token_seconds_sum"] == 0.01
    assert shown["gen_ai_client_token_usage_sum"] == 7


def test_two_of_them_share_nothing() -> None:
    one, other = Metrics(dict), Metrics(dict)
    one.token_usage.labels("chat", "tiny", "premium", "input").observe(7)
    assert "gen_ai_client_token_usage_sum" not in samples(other)
    assert not any(metric.name.startswith(("gen_ai", "turnpike")) for metric in REGISTRY.collect())
