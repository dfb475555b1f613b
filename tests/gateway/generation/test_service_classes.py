"""Which class serves a request, and what it is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from engine.request import BATCH, MAX_RESERVED_FRACTION, PREMIUM, STANDARD
from gateway.app import create_app
from gateway.config import service_classes
from gateway.config.engine_classes import engine_classes_of
from gateway.config.settings import Settings
from gateway.generation.service_classes import TierClasses, echoed
from gateway.http.errors import APIError
from gateway.tenancy import Principal
from tests.support.error_envelope import error_of
from tests.support.services import services_with

THREE = {
    "batch": {"priority": 30, "context_tokens": 100},
    "standard": {"priority": 20, "ttft_target_ms": 4000},
    "gold": {"priority": 10, "ttft_target_ms": 200, "max_wait_ms": 900},
}
ORDER = ["gold", "standard", "batch"]
WORDS = st.sampled_from([None, *service_classes.OPENAI_TIERS, *ORDER])


def classes(stated=None, **settings) -> TierClasses:
    return TierClasses(Settings(service_classes=stated or THREE, **settings))


def test_the_default_classes_are_the_engines() -> None:
    assert engine_classes_of(Settings()) == (PREMIUM, STANDARD, BATCH)
    assert service_classes.MAX_RESERVED_FRACTION == MAX_RESERVED_FRACTION
    tiers = TierClasses(Settings())
    assert [tiers.of_tier(name).limits.context_tokens for name in tiers.names] == [131_072, 32_768, 131_072]
    assert [tiers.of_tier(name).max_wait_ms for name in tiers.names] == [5_000, 30_000, 3_600_000]
    assert tiers.default_tier == "standard"


def test_lines_of_batches_are_served_by_one_class_and_never_a_higher_one() -> None:
    of_lines = TierClasses(Settings()).only(None)
    assert {of_lines.serving(tier, asked).name for tier in ("premium", "batch") for asked in (None, "auto")} == {
        "batch"
    }
    assert classes().only("standard").serving("gold", None).name == "standard"
    assert classes().only("standard").serving("batch", None).name == "batch"
    with pytest.raises(service_classes.UnknownClass):
        classes().only("none")


@given(st.sampled_from(ORDER), WORDS)
def test_a_client_can_lower_and_never_raise(tier: str, asked: str | None) -> None:
    serving = classes().serving(tier, asked).name
    assert ORDER.index(serving) >= ORDER.index(tier)
    if asked in ORDER:
        assert serving == max(tier, asked, key=ORDER.index)


@pytest.mark.parametrize(
    ("tier", "asked", "served", "said"),
    [
        ("gold", None, "gold", None),
        ("gold", "auto", "gold", "priority"),
        ("gold", "priority", "gold", "priority"),
        ("gold", "default", "standard", "default"),
        ("gold", "flex", "batch", "flex"),
        ("gold", "standard", "standard", "standard"),
        ("standard", "gold", "standard", "standard"),
        ("standard", "priority", "standard", "default"),
        ("batch", "default", "batch", "flex"),
        ("batch", "gold", "batch", "batch"),
    ],
)
def test_the_answer_names_the_requested_tier(tier: str, asked: str | None, served: str, said: str | None) -> None:
    serving = classes().serving(tier, asked)
    assert (serving.name, echoed(serving, asked)) == (served, said)


def test_without_a_class_called_standard_default_is_the_lowest() -> None:
    metals = classes({"lead": {"priority": 3}, "tin": {"priority": 2}, "iron": {"priority": 1}})
    assert metals.default_tier == "lead"
    assert metals.serving("iron", "default").name == "lead"
    assert metals.serving("iron", "auto").word == "priority"


def test_the_bound_on_waiting_is_stated_or_follows_from_the_target() -> None:
    bounds = {tier: classes(max_wait_s=20).of_tier(tier).max_wait_ms for tier in ORDER}
    assert bounds == {"gold": 900, "standard": 20_000, "batch": 20_000}


def test_a_word_that_is_no_class_is_refused_with_those_that_are() -> None:
    with pytest.raises(APIError) as refused:
        classes().serving("gold", "silver")
    for word in ("auto", "default", "flex", "priority", *ORDER):
        assert word in refused.value.message
    assert (refused.value.status, refused.value.param) == (400, "service_tier")


@pytest.fixture
def client(engine, authenticator, limiter, metrics, tmp_path):
    settings = Settings(data_dir=tmp_path, service_classes=THREE)
    for tier in (*ORDER, "silver"):
        authenticator.principals[f"tp-{tier}"] = Principal(f"id-{tier}", tier, tier, f"key-{tier}")
    with TestClient(
        create_app(settings, services_with(tmp_path, engine, authenticator, metrics=metrics, limiter=limiter))
    ) as client:
        yield client


def ask(client, key, **fields):
    body = {"model": "tiny", "prompt": "hi", "max_tokens": 2} | fields
    return client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {key}"})


def test_a_tenants_requests_run_in_its_class(client, engine):
    for tier in ORDER:
        assert ask(client, f"tp-{tier}").status_code == 200
    assert [call.service_class.name for call in engine.calls] == ORDER
    assert ask(client, "tp-gold", service_tier="batch").json()["service_tier"] == "batch"
    assert engine.calls[-1].service_class.priority == 30


def test_a_tier_that_is_no_class_any_more_is_refused_and_never_served_as_another(client, engine):
    error = error_of(ask(client, "tp-silver"), 403)
    assert error["code"] == "tier_not_served"
    assert "silver" in error["message"]
    assert error_of(ask(client, "tp-silver", service_tier="batch"), 403)["code"] == "tier_not_served"
    assert not engine.calls


def test_each_class_is_shed_at_its_own_bound(client, engine):
    for wait_ms, served in ((500, ORDER), (1_000, ["standard", "batch"]), (31_000, [])):
        engine.wait_ms = wait_ms
        assert [tier for tier in ORDER if ask(client, f"tp-{tier}").status_code == 200] == served


def test_the_context_of_a_tenant_without_limits_is_its_tiers(client):
    long = "x" * 200
    assert error_of(ask(client, "tp-batch", prompt=long), 400)["code"] == "context_length_exceeded"
    assert ask(client, "tp-gold", prompt=long).status_code == 200
    assert ask(client, "tp-gold", prompt=long, service_tier="batch").status_code == 200
