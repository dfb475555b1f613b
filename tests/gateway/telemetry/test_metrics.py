from dataclasses import replace
from importlib.metadata import version

from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from engine.runtime.core import EngineHealth
from engine.scheduling.stats import DraftStats, SpeculationStats
from gateway.telemetry.health import HealthCollector
from gateway.telemetry.metrics import Metrics
from tests.support.scheduler_stats import stats


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
    assert shown["turnpike_sequences_paused"] == expected.paused
    assert shown["turnpike_pauses_total"] == expected.pauses_total
    assert shown["turnpike_paused_seconds_total"] == expected.paused_ns_total * 1e-9
    assert shown["process_resident_memory_bytes"] > 0


def test_tokens_are_counted_by_expert() -> None:
    families = text_string_to_metric_families(Metrics(stats).render().decode())
    shown = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert shown["turnpike_expert_tokens_total", "tiny", "0"] == 5
    assert shown["turnpike_expert_tokens_total", "tiny", "1"] == 7


def test_steps_are_counted_by_their_launch() -> None:
    families = text_string_to_metric_families(Metrics(stats).render().decode())
    shown = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    launches = {way: shown["turnpike_launched_steps_total", "tiny", way] for way in ("replayed", "decode", "prefill")}
    assert launches == {"replayed": 90, "decode": 8, "prefill": 2}


def test_state_slots_are_those_of_models_with_recurrent_layers() -> None:
    shown = samples(Metrics(stats))
    names = ("slots", "slots_used", "slots_kept", "hits_total", "evictions_total")
    assert [shown[f"turnpike_state_{name}"] for name in names] == [9, 3, 4, 11, 6]
    plain = samples(Metrics(lambda: {"tiny": replace(stats()["tiny"], states=None)}))
    assert not any(name.startswith("turnpike_state_") for name in plain)


def test_slots_of_adapters_are_those_of_models_that_take_adapters() -> None:
    shown = samples(Metrics(stats))
    names = ("slots", "sequences_waiting", "loads_total", "evictions_total", "failures_total", "load_seconds_total")
    assert [shown[f"turnpike_adapter_{name}"] for name in names] == [20, 3, 70, 58, 1, 1.5]
    assert shown["turnpike_adapters_resident"] == 12
    plain = samples(Metrics(lambda: {"tiny": replace(stats()["tiny"], adapters=None)}))
    assert not any(name.startswith("turnpike_adapter") for name in plain)


def test_what_the_limits_say_of_this_moment_is_a_gauge_and_the_rest_is_counted() -> None:
    shown = samples(Metrics(dict, lambda: {"open": 3, "breaker_open": 1, "unmerged": 2, "degraded": 7}))
    assert (shown["turnpike_admission_open_holds"], shown["turnpike_limits_breaker_open"]) == (3, 1)
    assert (shown["turnpike_limits_unmerged"], shown["turnpike_admission_total"]) == (2, 7)
    assert samples(Metrics(dict))["turnpike_limits_breaker_open"] == 0


def test_health_is_read_when_asked() -> None:
    metrics, ready = Metrics(dict), True
    health = EngineHealth(alive=True, stuck_steps_total=0, step_age_seconds=0.25)
    metrics.registry.register(HealthCollector(lambda: ready, lambda: health))
    named = [f"turnpike_{each}" for each in ("ready", "engine_healthy", "engine_stuck_steps_total")]
    assert [samples(metrics)[each] for each in named] == [1, 1, 0]
    assert samples(metrics)["turnpike_engine_step_age_seconds"] == 0.25
    ready, health = False, EngineHealth(alive=False, stuck_steps_total=1, step_age_seconds=0.0)
    assert [samples(metrics)[each] for each in named] == [0, 0, 1]
    assert metrics.registry.get_sample_value("turnpike_build_info", {"version": version("turnpike")}) == 1


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
