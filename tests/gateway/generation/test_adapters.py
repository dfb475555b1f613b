"""Adapters as a client meets them: model names of one tenant, invisible to others, with their base model's answers,
their own version and their own price."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from operator import mul
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from engine.errors import AdapterUnavailable
from gateway.app import create_app
from gateway.billing.prices import multiplied
from gateway.config.settings import Settings
from gateway.generation.session_turn import SESSION_HEADER
from gateway.routing.names import ModelNames
from gateway.routing.router import adapter_route
from gateway.tenancy.limits import ScopeKind
from gateway.tenancy.records import Principal
from tests.support.adapters import adapter, book_of
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, CHAT, KEY, PREMIUM_KEY, PROMPT_TOKENS, USER, allow, limit
from tests.support.services import price_book, services_with
from tests.support.usage_events import event_of, events_of

MINE = adapter("tenant-1", "support", multiplier="1.5")
SPLIT = adapter("tenant-1", "split", weights={1: 1, 2: 1})
DEAR = adapter("tenant-1", "dear", "org/tiny-2")
THEIRS = adapter("tenant-2", "secret")
GONE = adapter("tenant-1", "orphan", "no-longer-served")
SHADOW = adapter("tenant-1", "tiny", "org/tiny-2")
PRICES = {"tiny": ("0.1", "0.05", "0.4"), "org/tiny-2": ("1", "1", "1"), DEAR.id: ("7", "3", "9")}
OTHER = {"authorization": f"Bearer {PREMIUM_KEY}"}


@pytest.fixture
def app(engine, authenticator, metrics, limiter, journal, tmp_path):
    config = Settings(
        data_dir=tmp_path,
        models=dict.fromkeys(engine.models, tmp_path),
        small_models={"tiny": "org/tiny-2"},
        embeddings={"tiny": "mean"},
        adapters={"roots": [tmp_path]},
    )
    given = {
        "metrics": metrics,
        "limiter": limiter,
        "journal": journal,
        "prices": price_book(PRICES),
        "adapters": book_of(MINE, SPLIT, DEAR, THEIRS, GONE, SHADOW),
    }
    return create_app(config, services_with(tmp_path, engine, authenticator, **given))


def ask(client: TestClient, model: str, headers: dict[str, str] = AUTHORISED, **members: Any) -> Any:
    return client.post(CHAT, json={"model": model, "messages": [USER], **members}, headers=headers)


@pytest.mark.parametrize("name", ["support", "acme/support"])
def test_a_request_by_either_name_is_answered_by_the_base_with_the_adapter(client, engine, journal, name) -> None:
    answer = ask(client, name)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == name
    assert answer.headers["x-turnpike-served-model"] == "tiny"
    assert answer.headers["x-turnpike-adapter"] == f"{MINE.id}@1"
    [call] = engine.calls
    [version] = MINE.versions
    assert call.model == "tiny"
    assert call.adapter.digest == version.digest
    assert call.adapter.folder == Path("/adapters") / version.digest
    event = event_of(journal)
    assert (event.requested_model, event.routed_model, event.served_model) == (name, "tiny", "tiny")
    assert event.adapter_id == MINE.id
    assert event.model_version.endswith(f"+{version.digest[:16]}")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 5}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
def test_every_endpoint_takes_an_adapter(client, engine, journal, path, body) -> None:
    answer = client.post(path, json={"model": "support", **body}, headers=AUTHORISED)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == "support"
    assert engine.calls[0].adapter.digest == MINE.versions[0].digest
    assert event_of(journal).adapter_id == MINE.id


@pytest.mark.parametrize("path", ["/v1/tokenize", "/v1/messages/count_tokens"])
def test_tokens_are_those_of_the_base(client, path) -> None:
    body = {"messages": [USER]}
    answers = [client.post(path, json={"model": model, **body}, headers=AUTHORISED) for model in ("support", "tiny")]
    assert answers[0].status_code == 200
    assert answers[0].json() == answers[1].json()


def test_streams_carry_the_name(client) -> None:
    answer = ask(client, "support", stream=True)
    assert '"model":"support"' in answer.text


def test_a_base_is_not_changed_by_a_tenants_adapters(client, engine) -> None:
    """Nor does an adapter shadow it whose name it has since got."""
    assert ask(client, "tiny").json()["model"] == "tiny"
    assert engine.calls[0].adapter is None


@pytest.mark.parametrize("name", ["secret", "globex/secret", "acme/secret", "tenant-2/secret", "secret:tenant-2"])
def test_another_tenants_adapter_does_not_exist(client, name) -> None:
    """Word for word as a name that no one has."""
    unknown = "x" * len(name)
    same = AUTHORISED | {"x-request-id": "same"}
    for path, body in (
        (CHAT, {"messages": [USER]}),
        ("/v1/embeddings", {"input": "hi"}),
        ("/v1/tokenize", {"prompt": "hi"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 5}),
    ):
        answers = [client.post(path, json={"model": each, **body}, headers=same) for each in (name, unknown)]
        assert [each.status_code for each in answers] == [404, 404], path
        assert answers[0].text.replace(name, unknown) == answers[1].text
    answers = [client.get(f"/v1/models/{each}", headers=same) for each in (name, unknown)]
    assert [each.status_code for each in answers] == [404, 404]
    assert answers[0].text.replace(name, unknown) == answers[1].text


def test_an_adapter_of_a_model_that_is_not_served_any_more_is_unknown(client) -> None:
    assert error_of(ask(client, "orphan"))["code"] == "model_not_found"
    ids = [card["id"] for card in client.get("/v1/models", headers=AUTHORISED).json()["data"]]
    assert "orphan" not in ids


def test_a_model_that_takes_none(client, engine) -> None:
    engine.slots_of["tiny"] = 0
    answer = ask(client, "support")
    assert answer.status_code == 400
    assert error_of(answer)["code"] == "unsupported_model"


def test_adapters_are_listed_for_their_tenant_alone(client) -> None:
    cards = {card["id"]: card for card in client.get("/v1/models", headers=AUTHORISED).json()["data"]}
    assert {"tiny", "org/tiny-2", "support", "split", "dear"} <= cards.keys()
    assert "secret" not in cards
    support = cards["support"]
    assert (support["parent"], support["root"], support["owned_by"]) == ("tiny", "acme/support", "acme")
    assert support["max_model_len"] == cards["tiny"]["max_model_len"]
    assert "parent" not in cards["tiny"]
    assert client.get("/v1/models/acme/support", headers=AUTHORISED).json() == support | {"id": "acme/support"}
    others = {card["id"] for card in client.get("/v1/models", headers=OTHER).json()["data"]}
    assert "secret" in others
    assert not others & {"support", "split", "dear"}


@pytest.mark.parametrize(
    ("models", "status"), [({"tiny"}, 200), ({"support"}, 200), ({"acme/support"}, 200), ({"org/tiny-2"}, 403)]
)
def test_a_key_needs_the_base_or_the_adapter(client, authenticator, models, status) -> None:
    principal = authenticator.principals[KEY]
    authenticator.principals[KEY] = replace(principal, models=frozenset(models))
    assert ask(client, "support").status_code == status
    assert client.get("/v1/models/support", headers=AUTHORISED).status_code == (200 if status == 200 else 404)


def test_an_alias_leads_to_an_adapter_and_never_hides_one(client, authenticator, engine) -> None:
    allow(authenticator, aliases={"assistant": "support", "split": "tiny", "theirs": "globex/secret"})
    assert ask(client, "assistant").json()["model"] == "assistant"
    assert ask(client, "split").status_code == 200
    digests = [call.adapter.digest for call in engine.calls]
    assert digests[0] == MINE.versions[0].digest
    assert digests[1] in {version.digest for version in SPLIT.versions}
    assert ask(client, "theirs").status_code == 404


def test_no_other_model_replaces_the_base(client, authenticator, engine) -> None:
    """The small model has no such adapter: not when the base is overloaded, and not near the end of a budget."""
    allow(authenticator, degrade=True, degrade_near_budget=True, cascade_percent=50)
    engine.waits_ms["tiny"] = 10**6
    answer = ask(client, "support")
    assert answer.status_code == 429
    assert engine.calls == []


def test_a_limit_on_the_adapter_by_its_name(client, authenticator) -> None:
    limit(authenticator, ScopeKind.MODEL, "support", requests_per_minute=1)
    assert ask(client, "support").status_code == 200
    assert ask(client, "acme/support").status_code == 429
    assert ask(client, "tiny").status_code == 200


def test_an_adapter_that_cannot_be_loaded_is_answered_503(client, engine, journal) -> None:
    engine.fail_at, engine.failure = 0, AdapterUnavailable("no slot in /srv/adapters")
    answer = ask(client, "support")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    error = error_of(answer)
    assert (error["code"], error["param"]) == ("adapter_unavailable", "model")
    assert "/srv" not in answer.text
    assert event_of(journal).cost_nanodollars == 0


def test_the_price_is_a_multiple_of_the_bases_or_the_adapters_own(client, journal) -> None:
    for name in ("tiny", "support", "dear"):
        assert ask(client, name, max_tokens=5).status_code == 200
    plain, multiple, own = events_of(journal)
    for event, units, version in (
        (plain, (100, 50, 400), "tiny@1"),
        (multiple, (150, 75, 600), "tiny@1*1.5"),
        (own, (7000, 3000, 9000), f"{DEAR.id}@1"),
    ):
        assert event.price_version == version
        assert event.prompt_tokens == PROMPT_TOKENS
        tokens = (event.prompt_tokens - event.cached_tokens, event.cached_tokens, event.completion_tokens)
        assert event.cost_nanodollars == sum(map(mul, units, tokens))


def test_sessions_keep_their_version(client, engine) -> None:
    for session in range(30):
        for _ in range(2):
            headers = AUTHORISED | {SESSION_HEADER: f"s{session}"}
            assert ask(client, "split", headers).status_code == 200
    digests = [call.adapter.digest for call in engine.calls]
    assert digests[::2] == digests[1::2]
    assert min(Counter(digests).values()) > 5
    assert len(set(digests)) == 2


NAMES = st.sampled_from(["a", "b", "tiny", "auto", "x.y", "acme", "globex"])
OWNED = st.lists(st.tuples(st.sampled_from(["acme", "globex", "initech"]), NAMES), max_size=8, unique=True)
ASKED = st.one_of(NAMES, st.tuples(st.sampled_from(["acme", "globex", "x"]), NAMES).map("/".join), st.text(max_size=9))


@settings(max_examples=300)
@given(OWNED, ASKED, st.sampled_from(["acme", "globex"]), st.dictionaries(NAMES, ASKED, max_size=3))
def test_a_name_never_leads_to_another_tenants_adapter(owned, name, tenant, aliases) -> None:
    """For any name; and a tenant's own is found by both of its names, unless a model has the name."""
    book = book_of(*(adapter(owner, each) for owner, each in owned))
    names = ModelNames(("tiny", "small"), {"tiny": "small"}, {}, {"b": "tiny"})
    caller = Principal(tenant, tenant, "standard", "key")

    def found(each: str) -> Any:
        return names.find(each, aliases, lambda own: book.find(own, caller))

    target = found(name)
    assert not hasattr(target, "tenant_id") or target.tenant_id == tenant
    for owner, each in owned:
        if owner == tenant:
            assert getattr(found(f"{tenant}/{each}"), "name", None) == each
            assert each == "tiny" or found(each) is found(f"{tenant}/{each}")


@settings(max_examples=100)
@given(st.dictionaries(st.integers(1, 9), st.integers(0, 100), min_size=1, max_size=5), st.text(max_size=8))
def test_a_request_gets_a_version_with_a_weight_and_always_the_same(weights, who) -> None:
    if not any(weights.values()):
        weights[next(iter(weights))] = 1
    shared = adapter("acme", "a", weights=weights)
    route = adapter_route("a", shared, who)
    assert route == adapter_route("acme/a", shared, who) or route.requested == "a"
    assert weights[route.adapter.version.number] > 0
    assert not route.fallbacks
    assert route.trial is None


def test_the_multiplier_is_part_of_the_price_version() -> None:
    book = price_book({"tiny": ("0.1", "0.05", "0.4")})
    plain = book.price_of("tiny", "premium", MINE.created_at.replace(year=2026))
    assert multiplied(plain, Decimal(1)) is plain
    assert multiplied(plain, Decimal("1.50")).version == f"{plain.version}*1.5"
