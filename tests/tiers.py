"""The tiers of tests. A test's markers follow from where it lies and which fixtures it asks for.

`make test` runs `pytest -m unit`; `pytest -m services tests/gateway` runs one tier of some tests.
"""

import re

import pytest

UNIT = "unit"

PLACES = {
    "campaign": (
        "tests/console/test_doors.py",
        "tests/console/test_hostile.py",
        "tests/deploy/test_dockerfile.py::test_the_source_distribution",
        "tests/engine/execution/test_draft_distribution.py",
        "tests/engine/grammar/test_compiler.py::test_a_bomb_that_runs_out_of_states",
        "tests/engine/scheduling/test_predicted_wait.py",
        "tests/engine/simulation/test_blocks_a_step.py",
        "tests/engine/simulation/test_campaign.py::test_the_number_of_processes",
        "tests/engine/simulation/test_shrink.py",
        "tests/engine/simulation/test_simulation.py::test_a_planted_bug",
        "tests/engine/simulation/test_ahead.py::test_a_planted_bug",
        "tests/engine/simulation/test_stages.py::test_a_planted_bug",
        "tests/engine/simulation/test_stages.py::test_of_other_models",
        "tests/engine/simulation/test_states.py",
        "tests/engine/simulation/test_tier.py::test_a_planted_bug",
        "tests/engine/simulation/test_windows.py",
        "tests/engine/simulation/test_speculate.py::test_a_planted_bug",
        "tests/engine/speculation/test_controller.py",
        "tests/gateway/admin/test_openapi.py",
        "tests/gateway/admission/test_outages.py::test_short_faults",
        "tests/gateway/analytics/test_rollups.py::test_series_after_a_rebuild",
        "tests/gateway/formats/openai/test_fuzz.py",
        "tests/gateway/generation/test_reservations.py",
        "tests/gateway/generation/test_unread_streams.py",
        "tests/gateway/metering/test_crashes.py",
        "tests/gateway/process/test_hostile_connections.py",
        "tests/gateway/routing/test_fit.py",
        "tests/kernels/test_host_ops.py",
        "tests/pairs/test_pairs.py::test_every_pair",
        "tests/whole/test_whole.py::test_scenarios",
        "tests/whole/test_whole.py::test_planted",
        "tests/whole/test_whole.py::test_a_seed_goes_the_same_way_each_time",
    ),
    "e2e": (
        "tests/benchmarks/test_peers.py::test_the_command_ends_its_servers",
        "tests/e2e/",
        "tests/engine/models/test_hub.py",
        "tests/engine/workers/test_replica_engine.py",
        "tests/engine/workers/test_unix_workers.py",
        "tests/engine/workers/test_worker_engine.py",
        "tests/engine/workers/test_worker_ranks.py",
        "tests/gateway/test_bench_and_top.py",
        "tests/gateway/test_cli.py::test_the_installed_command",
        "tests/gateway/test_cli_beside_gateway.py",
        "tests/gateway/test_cli_hub.py",
        "tests/gateway/test_life.py",
        "tests/gateway/test_serve.py",
        "tests/gateway/test_memory_trim.py",
        "tests/gateway/grpc/test_engine_and_tls.py",
        "tests/gateway/process/test_newest_uvicorn.py",
    ),
    "kernels": (
        "tests/benchmarks/test_gpu.py",
        "tests/benchmarks/test_gpu_packages.py",
        "tests/kernels/triton/",
        "tests/engine/execution/device/",
    ),
    "matrix": ("tests/engine/execution/parallel/test_text.py::test_every_text",),
    "models": (
        "tests/engine/execution/test_golden.py",
        "tests/engine/execution/test_hybrid.py",
        "tests/engine/execution/test_native.py",
        "tests/engine/execution/test_windows.py",
        "tests/engine/execution/parallel/test_lost_ranks.py::test_of_several",
        "tests/engine/execution/parallel/test_pipeline.py",
        "tests/engine/execution/parallel/test_rank_model.py",
        "tests/engine/execution/parallel/test_text.py::test_text",
        "tests/engine/execution/parallel/test_text.py::test_a_draft_model",
        "tests/engine/models/quantization/",
        "tests/engine/models/test_gguf_families.py",
        "tests/engine/speculation/test_draft_memory.py",
        "tests/engine/speculation/test_draft_model.py",
        "tests/engine/speculation/test_serving.py",
        "tests/kernels/cpu/test_blocks.py",
        "tests/kernels/cpu/test_native_attention.py",
    ),
    "soak": (
        "tests/engine/simulation/test_campaign.py::test_no_seed_breaks_an_invariant[whole",
        "tests/engine/simulation/test_campaign.py::test_the_campaign_includes_each_fault_in_each_phase[whole",
    ),
    "services": (
        "tests/deploy/test_alertmanager.py",
        "tests/deploy/test_alerts.py::test_each_alert_fires",
        "tests/deploy/test_alerts.py::test_the_rules",
        "tests/deploy/test_caddy.py",
        "tests/deploy/test_compose.py::test_prometheus_takes",
        "tests/deploy/test_compose_wiring.py",
        "tests/deploy/test_exporters.py",
        "tests/deploy/test_helm.py",
        "tests/deploy/test_prometheus_server.py",
        "tests/gateway/tenancy/test_outage.py::test_a_real_server",
        "tests/support/test_servers.py",
    ),
}
"""Locations of a tier's tests: folders, files, or beginnings of names in a file."""

KEPT = (
    "tests/engine/execution/test_golden.py::test_logits[llama",
    "tests/engine/execution/test_golden.py::test_greedy_text_alone[llama",
    "tests/engine/execution/test_golden.py::test_greedy_text_in_a_batch_of_32[llama",
    "tests/engine/execution/test_native.py::test_text_alone_and_in_a_batch[llama",
    "tests/engine/execution/parallel/test_rank_model.py::test_steps[tp2-pp2-llama",
    "tests/engine/execution/parallel/test_rank_model.py::test_steps[tp2-gemma4_moe",
    "tests/engine/execution/parallel/test_rank_model.py::test_steps[tp4-deepseek_v3",
    "tests/engine/execution/parallel/test_rank_model.py::test_steps[tp4-qwen3_5_moe",
    "tests/engine/execution/parallel/test_rank_model.py::test_steps[tp2-minimax_m2",
    "tests/engine/execution/parallel/test_rank_model.py::test_draws",
    "tests/engine/execution/parallel/test_text.py::test_text[llama-tp2]",
    "tests/engine/execution/device/test_graphs.py",
    "tests/engine/execution/device/test_slots.py",
    "tests/engine/execution/device/test_staging.py",
    "tests/kernels/triton/test_activation.py",
    "tests/kernels/triton/test_embedding.py",
    "tests/kernels/triton/test_norms.py",
    "tests/kernels/triton/test_plan.py",
    "tests/kernels/triton/test_variants.py",
)
"""Files of a tier's folders that are fast, and of the models one family: they stay in `unit`."""

FIXTURES = {
    "browser": {"browser"},
    "campaign": {"campaign", "wheel"},
    "e2e": {"smollm2_file"},
    "services": {
        "postgres",
        "redis",
        "redis_server",
        "kafka_server",
        "clickhouse_server",
        "own_clickhouse",
        "site",
        "watched",
    },
}
"""Fixtures that put a test in a tier, directly or through another fixture."""

PARAMETERS = {"e2e": {"smollm2"}, "services": {"postgresql", "redis", "server"}}
"""Parameters of fixtures by which a test that runs on several stores or models runs on such a one."""

OTHERS = PLACES.keys() | FIXTURES.keys()

BY_PLACE = PLACES.keys() - FIXTURES.keys() - PARAMETERS.keys()
"""Tiers that no fixture puts a test in."""

BY_NAME = {"matrix", "soak"}
"""Tiers that run by their own name alone: `make test-all` leaves them out. Their tests are in no other tier."""


def tiers_of(nodeid: str, fixtures: set[str], parameters: set[str]) -> set[str]:
    """The tiers of a test: `unit` alone, or all others that it belongs to."""
    tiers = {tier for tier, places in PLACES.items() if nodeid.startswith(places) and not nodeid.startswith(KEPT)}
    tiers |= {tier for tier, names in FIXTURES.items() if fixtures & names}
    tiers |= {tier for tier, values in PARAMETERS.items() if parameters & values}
    return tiers & BY_NAME or tiers or {UNIT}


def is_left_out(path: str, config: pytest.Config) -> bool:
    """Whether a run need not import a file, as its expression takes none of the tests there.

    That is known of `unit`, and of tiers that follow from the place alone: of one, of several (`kernels or models`),
    and of all but those (`not (kernels or models)`).
    """
    expression = config.option.markexpr
    kept = any(each.startswith(f"{path}::") for each in KEPT)
    by_place = tiers_of(f"{path}::", set(), set())
    if expression == UNIT:
        return UNIT not in by_place and not kept
    if excluded := re.fullmatch(r"not \(([\w ]+)\)", expression):
        return not kept and by_place <= set(excluded[1].split(" or ")) & BY_PLACE
    chosen = set(expression.split(" or "))
    inside = {tier for tier, places in PLACES.items() for each in places if each.startswith(f"{path}::")}
    return chosen <= BY_PLACE and not chosen & (by_place | inside)


def mark(item: pytest.Item) -> None:
    """Give a test the markers of its tiers."""
    callspec = getattr(item, "callspec", None)
    parameters = {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()
    for tier in tiers_of(item.nodeid, set(getattr(item, "fixturenames", ())), parameters):
        item.add_marker(tier)


def left_out(config: pytest.Config) -> str | None:
    """One line on what a run of `-m unit` leaves out."""
    if config.option.markexpr != UNIT:
        return None
    tiers = [
        tier for line in config.getini("markers") for tier in re.findall(r"^(\w+): (.*)", line) if tier[0] in OTHERS
    ]
    others = "; ".join(f"{tier} ({needs})" for tier, needs in tiers)
    return f"left out: {others}. All of it: make test-all. One of them: .venv/bin/pytest -m TIER"
