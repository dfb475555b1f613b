"""Metrics of each class, over the real engine and classes of the operator's own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from engine.config import EngineConfig, SchedulerConfig
from engine.engine import Engine
from engine.scheduling.service_window import jain_index
from gateway.app import create_app
from gateway.config.engine_classes import engine_classes_of
from gateway.config.settings import Settings
from gateway.tenancy import Limits, Principal, ScopedLimits, ScopeKind
from tests.support.error_envelope import error_of
from tests.support.gateway import FakeAuthenticator
from tests.support.services import services_with
from tests.support.tiny_models import make_checkpoint

CLASSES = {
    "gold": {"priority": 1, "reserved_fraction": 0.25, "ttft_target_ms": 300},
    "silver": {"priority": 2, "reserved_fraction": 0.25},
    "bulk": {"priority": 9, "step_share": 0.2, "max_wait_ms": 60_000},
}
TENANTS = {f"{tier}-{number}": tier for tier in CLASSES for number in (1, 2)}
COUNTERS = (
    "turnpike_class_recomputed_tokens_total",
    "turnpike_class_preemptions_caused_total",
    "turnpike_class_preemptions_suffered_total",
    "turnpike_class_engine_seconds_total",
    "turnpike_class_recompute_seconds_total",
    "turnpike_class_wasted_rows_total",
    "turnpike_class_itl_limited_steps_total",
    "turnpike_class_wasted_seconds_total",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def authenticator():
    authenticator = FakeAuthenticator()
    authenticator.principals = {name: Principal(name, name, tier, name) for name, tier in TENANTS.items()}
    return authenticator


@pytest.fixture
def engine(folder, tmp_path):
    settings = Settings(data_dir=tmp_path, service_classes=CLASSES)
    scheduler = SchedulerConfig(max_running=2, classes=engine_classes_of(settings))
    config = EngineConfig(dtype="float32", kv_cache_bytes=4 * 2**20, threads=1, scheduler=scheduler)
    return Engine.load({"tiny": folder}, config)


@pytest.fixture
def client(engine, authenticator, tmp_path):
    settings = Settings(data_dir=tmp_path, service_classes=CLASSES)
    app = create_app(settings, services_with(tmp_path, engine, authenticator))
    with TestClient(app) as client:
        yield client


def ask(client, tenant, **fields):
    body = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    return client.post("/v1/completions", json=body | fields, headers={"authorization": f"Bearer {tenant}"})


def by_class(client, name):
    """A metric's values, by class."""
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels["turnpike_class"]: sample.value for sample in samples}


def test_every_class_is_there_before_the_first_request(client):
    for name in COUNTERS:
        assert by_class(client, name) == {"gold": 0, "silver": 0, "bulk": 0}
    assert by_class(client, "turnpike_class_queue_age_seconds") == {"gold": 0, "silver": 0, "bulk": 0}
    assert by_class(client, "turnpike_class_fairness") == {"gold": 1, "silver": 1, "bulk": 1}
    reserved = by_class(client, "turnpike_class_kv_blocks_reserved")
    assert reserved["gold"] == reserved["silver"] > 0
    assert reserved["bulk"] == 0


def test_what_runs_waits_and_is_held(client, engine, monkeypatch):
    """Two run in a step that does not end; the two behind them grow old."""
    runner = engine._core._runtimes["tiny"].executor
    execute, entered, leave = runner.execute, threading.Event(), threading.Event()

    def stuck(plan):
        entered.set()
        leave.wait(10)
        return execute(plan)

    reserve = by_class(client, "turnpike_class_kv_blocks_reserved")
    monkeypatch.setattr(runner, "execute", stuck)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, client, "gold-1", n=1)]
        assert entered.wait(10)
        asked += [pool.submit(ask, client, tenant) for tenant in ("bulk-1", "bulk-2")]
        while by_class(client, "turnpike_class_sequences_waiting")["bulk"] < 2:
            time.sleep(0.005)
        first = by_class(client, "turnpike_class_queue_age_seconds")
        second = by_class(client, "turnpike_class_queue_age_seconds")
        held = by_class(client, "turnpike_class_kv_blocks_held")
        assert by_class(client, "turnpike_class_sequences_running") == {"gold": 1, "silver": 0, "bulk": 0}
        assert held == {"gold": held["gold"], "silver": 0, "bulk": 0}
        assert held["gold"] > 0
        kept = by_class(client, "turnpike_class_kv_blocks_reserved")
        leave.set()
        assert [each.result().status_code for each in asked] == [200, 200, 200]
    assert (first["gold"], first["silver"]) == (0, 0)
    assert 0 < first["bulk"] < second["bulk"]
    assert kept == reserve | {"gold": reserve["gold"] - held["gold"]}
    assert by_class(client, "turnpike_class_queue_age_seconds")["bulk"] == 0


def test_time_and_cached_blocks_belong_to_the_class(client):
    prompt = "The quick brown fox jumps over the lazy dog. " * 4
    assert ask(client, "silver-1", prompt=prompt).status_code == 200
    cached = by_class(client, "turnpike_class_kv_blocks_cached")
    assert cached == {"gold": 0, "silver": cached["silver"], "bulk": 0}
    assert cached["silver"] > 0
    seconds = by_class(client, "turnpike_class_engine_seconds_total")
    assert seconds == {"gold": 0, "silver": seconds["silver"], "bulk": 0}
    assert seconds["silver"] > 0


def test_fairness_is_jains_index_of_what_the_tenants_of_a_class_were_served(client):
    services = []
    for tenant, tokens in (("bulk-1", 3), ("bulk-2", 30)):
        usage = ask(client, tenant, max_tokens=tokens).json()["usage"]
        services.append(usage["prompt_tokens"] + 2 * usage["completion_tokens"])
    assert ask(client, "gold-1").status_code == 200
    assert by_class(client, "turnpike_class_tenants_active") == {"gold": 1, "silver": 0, "bulk": 2}
    fairness = by_class(client, "turnpike_class_fairness")
    assert fairness == {"gold": 1, "silver": 1, "bulk": pytest.approx(jain_index(services))}
    assert fairness["bulk"] < 0.9


def test_sheds_are_counted_by_class_and_reason(client, engine, authenticator, monkeypatch):
    one = ScopedLimits(ScopeKind.TENANT, "", Limits(requests_per_minute=1))
    authenticator.principals["gold-2"] = Principal("gold-2", "gold-2", "gold", "gold-2", (one,))
    assert ask(client, "gold-2").status_code == 200
    assert error_of(ask(client, "gold-2"), 429)["code"] == "rate_limit_exceeded"
    wait = engine.predicted_wait("tiny", engine_classes_of(Settings(service_classes=CLASSES))[0], 1)
    late = type(wait)(first_token_ns=31 * 10**9, drain_ns=10**9)
    monkeypatch.setattr(engine, "predicted_wait", lambda *_: late)
    monkeypatch.setattr(engine, "queue_depth", lambda _: 1)
    for tenant, bound_ms in (("gold-1", 3_000), ("silver-1", 30_000), ("silver-2", 30_000)):
        error = error_of(ask(client, tenant), 429)
        assert (error["code"], error["limit"]["limit"]) == ("overloaded", bound_ms)
    assert ask(client, "bulk-1").status_code == 200
    assert error_of(ask(client, "bulk-1", max_tokens=-1), 400)

    families = text_string_to_metric_families(client.get("/metrics").text)
    sheds = [s for family in families for s in family.samples if s.name == "turnpike_class_sheds_total"]
    assert {(s.labels["turnpike_class"], s.labels["reason"]): s.value for s in sheds} == {
        ("gold", "rate_limit_exceeded"): 1,
        ("gold", "overloaded"): 1,
        ("silver", "overloaded"): 2,
    }


@pytest.mark.parametrize("name", ["time_to_first_token", "time_per_output_token"])
def test_latencies_have_edges_where_targets_are(client, name):
    assert ask(client, "gold-1", max_tokens=100).status_code == 200  # more than one delta
    families = text_string_to_metric_families(client.get("/metrics").text)
    buckets = [s for f in families for s in f.samples if s.name == f"gen_ai_server_{name}_seconds_bucket"]
    assert {s.labels["turnpike_tier"] for s in buckets} == {"gold"}
    assert {0.4, 0.5} <= {float(s.labels["le"]) for s in buckets}


def test_no_metric_names_a_tenant(client):
    for tenant in TENANTS:
        assert ask(client, tenant).status_code == 200
    text = client.get("/metrics").text
    assert not any(tenant in text for tenant in TENANTS)
