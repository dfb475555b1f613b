"""Rights of keys with scopes or models."""

from dataclasses import replace

import pytest

from gateway.http.middleware import OPEN_PATHS
from gateway.tenancy import KeyScope
from tests.support.error_envelope import error_of
from tests.support.gateway import CHAT, KEY

CHAT_BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def narrow(authenticator):
    """Narrow what the client's key may do."""

    def narrow(**grants):
        authenticator.principals[KEY] = replace(authenticator.principals[KEY], **grants)

    return narrow


def test_a_scope_opens_its_endpoints_and_no_others(client, engine, narrow):
    narrow(scopes=frozenset({KeyScope.COMPLETIONS}))
    error = error_of(client.post(CHAT, json=CHAT_BODY), 403)
    assert error["code"] == "scope_not_allowed"
    assert engine.calls == []
    assert client.post("/v1/completions", json={"model": "tiny", "prompt": "hello"}).status_code == 200
    assert client.post("/v1/tokenize", json={"model": "tiny", "prompt": "hello"}).status_code == 200
    assert client.get("/v1/models").status_code == 200
    assert client.get("/v1/models/tiny").status_code == 200


def test_a_key_for_usage_generates_nothing(client, engine, narrow):
    narrow(scopes=frozenset({KeyScope.USAGE}))
    for path in (CHAT, "/v1/completions", "/v1/tokenize", "/v1/detokenize"):
        error_of(client.post(path, json=CHAT_BODY), 403)
    assert engine.calls == []


def test_a_key_with_all_scopes_reaches_every_endpoint(app, client, narrow):
    narrow(scopes=frozenset(KeyScope))
    for path in {route.path for route in app.routes} - OPEN_PATHS:
        assert client.options(path.partition("{")[0]).status_code in (404, 405), path


@pytest.mark.parametrize("path", ["/v1/nope", "/v1/chat", "/v1/chat/completions/", "/v1/modelsx", "/nope"])
def test_a_path_of_no_endpoint_is_closed_to_keys_with_scopes(client, narrow, path):
    narrow(scopes=frozenset(KeyScope))
    assert error_of(client.get(path), 403)["code"] == "scope_not_allowed"


def test_a_key_for_some_models_uses_and_sees_those(client, engine, narrow):
    narrow(models=frozenset({"other"}))
    error = error_of(client.post(CHAT, json=CHAT_BODY), 403)
    assert (error["code"], error["param"]) == ("model_not_allowed", "model")
    error_of(client.post("/v1/tokenize", json={"model": "tiny", "prompt": "hello"}), 403)
    error_of(client.post("/v1/detokenize", json={"model": "tiny", "tokens": [1]}), 403)
    assert engine.calls == []
    assert client.get("/v1/models").json()["data"] == []
    error_of(client.get("/v1/models/tiny"), 404)
    narrow(models=frozenset({"tiny"}))
    assert client.post(CHAT, json=CHAT_BODY).status_code == 200
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny"]


def test_whether_a_model_exists_is_not_told_to_a_key_that_may_not_use_it(client, narrow):
    narrow(models=frozenset({"other"}))
    answers = [error_of(client.post(CHAT, json=CHAT_BODY | {"model": name}), 403) for name in ("tiny", "none")]
    assert answers[0] == answers[1]
