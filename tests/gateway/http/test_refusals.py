"""Every request that is refused is a refusal of its tenant, and of none where the key is unknown. One that has a usage
record is no refusal."""

from dataclasses import replace

import httpx
import pytest

from engine.errors import EngineError
from gateway.admission import Measure, Scope, StoreAway
from gateway.metering.journal.journal import JournalUnavailable
from gateway.refusals.refusal import MAX_MODEL_CHARS
from gateway.telemetry.outcomes import RequestOutcome
from gateway.tenancy import ScopeKind
from gateway.tenancy.errors import InvalidKey, TenantSuspended
from gateway.tenancy.grants import KeyScope
from tests.support.gateway import AUTHORISED, KEY, MAX_BODY_BYTES, PREMIUM_KEY, limit, until

CHAT = "/v1/chat/completions"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture
def told(client, refusals, refusal_table):
    """The rows of what was refused so far."""

    def rows():
        client.portal.call(refusals.flush)
        return refusal_table.rows

    return rows


def test_a_limits_refusal_names_tenant_key_model_and_limit(client, authenticator, told):
    limit(authenticator, requests_per_minute=1)
    assert client.post(CHAT, json=BODY).status_code == 200
    assert told() == []
    answers = [client.post(CHAT, json=BODY) for _ in range(3)]
    assert {answer.status_code for answer in answers} == {429}
    [row] = told()
    assert (row.tenant_id, row.key_id, row.tier) == ("tenant-1", "pubid1", "standard")
    assert (row.model, row.endpoint) == ("tiny", CHAT)
    assert (row.outcome, row.status, row.code) == ("turned_away", 429, answers[0].json()["error"]["code"])
    assert (row.limit_name, row.requests) == ("tenant.requests_per_minute", 3)
    assert row.request_id == answers[-1].headers["x-request-id"]
    assert row.source == "journal-1"


@pytest.mark.parametrize(
    ("send", "expected"),
    [
        (lambda client: client.post(CHAT, json=BODY | {"temperature": 5}), (400, "invalid_value", "tiny", CHAT)),
        (lambda client: client.post(CHAT, content=b"{"), (415, "unsupported_media_type", "", CHAT)),
        (
            lambda client: client.post(CHAT, content=b"{", headers={"content-type": "application/json"}),
            (400, "invalid_json", "", CHAT),
        ),
        (
            lambda client: client.post(CHAT, json=BODY | {"model": "no" * 500}),
            (404, "model_not_found", ("no" * 500)[:MAX_MODEL_CHARS], CHAT),
        ),
        (lambda client: client.post(CHAT, json=BODY | {"model": 5}), (400, "invalid_type", "", CHAT)),
        (lambda client: client.get("/v1/models/gone"), (404, "model_not_found", "gone", "/v1/models/{id}")),
        (lambda client: client.get("/v1/nowhere"), (404, "not_found", "", "(other)")),
        (lambda client: client.delete("/v1/models"), (405, "method_not_allowed", "", "/v1/models")),
        (
            lambda client: client.post(CHAT, content=b" " * (MAX_BODY_BYTES + 1)),
            (413, "request_too_large", "", CHAT),
        ),
    ],
)
def test_what_a_request_asks_wrongly_is_refused(client, told, send, expected):
    answer = send(client)
    [row] = told()
    assert (row.status, row.code, row.model, row.endpoint) == expected
    assert answer.status_code == row.status
    assert answer.json()["error"]["code"] == row.code
    assert (row.tenant_id, row.outcome, row.limit_name, row.requests) == ("tenant-1", "refused", "", 1)


@pytest.mark.parametrize(
    ("change", "code"),
    [({"scopes": frozenset({KeyScope.USAGE})}, "scope_not_allowed"), ({"models": frozenset()}, "model_not_allowed")],
)
def test_what_a_key_may_not_is_refused(client, authenticator, told, change, code):
    authenticator.principals[KEY] = replace(authenticator.principals[KEY], **change)
    assert client.post(CHAT, json=BODY).status_code == 403
    [row] = told()
    assert (row.tenant_id, row.status, row.code, row.outcome) == ("tenant-1", 403, code, "refused")


@pytest.mark.parametrize(("error", "status"), [(InvalidKey, 401), (TenantSuspended, 403)])
def test_a_key_that_was_a_tenants_is_refused_as_its(client, authenticator, told, monkeypatch, error, status):
    owner = authenticator.principals[KEY]

    async def ended(presented):
        raise error("over", owner)

    monkeypatch.setattr(authenticator, "authenticate", ended)
    assert client.post(CHAT, json=BODY).status_code == status
    [row] = told()
    assert (row.tenant_id, row.key_id, row.tier, row.status) == ("tenant-1", "pubid1", "standard", status)
    assert row.model == "", "its body was not read"


def test_an_unknown_key_is_refused_without_a_tenant(client, told):
    client.post(CHAT, json=BODY, headers={"authorization": "Bearer tp-invented"})
    client.get("/v1/models", headers={"authorization": ""})
    rows = told()
    assert {(row.tenant_id, row.key_id, row.tier, row.code) for row in rows} == {("", "", "", "invalid_api_key")}
    assert sorted(row.endpoint for row in rows) == [CHAT, "/v1/models"]


def test_shedding_is_told_by_class(client, engine, told):
    engine.wait_ms = 10_000_000
    client.post(CHAT, json=BODY)
    client.post("/v1/messages", json=BODY | {"max_tokens": 5}, headers={"x-api-key": PREMIUM_KEY, "authorization": ""})
    client.post("/v1/messages", json=BODY | {"max_tokens": 5})
    rows = {(row.status, row.code, row.limit_name, row.outcome) for row in told()}
    assert (429, "overloaded", "class.standard", "turned_away") in rows
    assert (529, "overloaded", "class.standard", "turned_away") in rows


def test_what_the_gateway_cannot_do_is_told_as_failed(client, limiter, authenticator, told, monkeypatch):
    async def away(*_, **__):
        raise StoreAway("away", Scope("acme", ScopeKind.TENANT, "", Measure.TOKENS_PER_DAY))

    monkeypatch.setattr(limiter, "hold", away)
    assert client.post(CHAT, json=BODY).status_code == 503
    authenticator.down = True
    assert client.post(CHAT, json=BODY).status_code == 503
    rows = told()
    assert {(row.tenant_id, row.outcome, row.code) for row in rows} == {
        ("tenant-1", "failed", "service_unavailable"),
        ("", "failed", "service_unavailable"),
    }


def test_a_request_that_cannot_be_journalled_has_no_usage_record(client, journal, told, monkeypatch):
    def full(*_):
        raise JournalUnavailable("full")

    monkeypatch.setattr(journal, "begin", full)
    assert client.post(CHAT, json=BODY).status_code == 503
    assert [(row.tenant_id, row.outcome) for row in told()] == [("tenant-1", "failed")]


@pytest.mark.parametrize("stream", [False, True])
def test_what_fails_with_a_usage_record_is_a_usage_event(client, engine, told, stream):
    engine.fail_at, engine.failure = (2 if stream else 0), EngineError("the step failed")
    answer = client.post(CHAT, json=BODY | {"stream": stream})
    assert answer.status_code == (200 if stream else 500)
    assert told() == []


def test_what_operators_ask_is_no_refusal(client, told):
    for path in ("/healthz", "/nowhere", "/favicon.ico", "/admin/v1/nothing", "/console/nothing"):
        client.get(path, headers={"authorization": ""})
    client.delete("/metrics")
    assert {row.endpoint for row in told()} <= {"(other)"}
    assert all(row.tenant_id == "" for row in told())


def test_a_client_that_hangs_up_is_not_refused(server, engine, metrics, refusals):
    engine.pace_s = 0.02
    with httpx.stream("POST", f"{server.url}{CHAT}", json=BODY | {"stream": True}, headers=AUTHORISED) as answer:
        next(answer.iter_lines())
    gone = {"outcome": RequestOutcome.CLIENT_GONE.value}
    until(lambda: metrics.registry.get_sample_value("turnpike_requests_total", gone))
    assert refusals.unstored_requests == 0


@pytest.mark.parametrize(
    ("path", "endpoint"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/sessions/mine/and/more", "/v1/sessions/{id}"),
        ("/v1/responses/resp_1/input_items", "/v1/responses/{id}"),
        ("/v1/chat/completions/", "(other)"),
        ("/v1/%00", "(other)"),
    ],
)
def test_endpoints_are_a_closed_set(client, told, path, endpoint):
    client.put(path)
    assert [row.endpoint for row in told()] == [endpoint]
