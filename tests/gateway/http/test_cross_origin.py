"""Web pages of allowed origins may call `/v1` from a browser, and nothing else."""

import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from gateway.app import create_app
from gateway.config.settings import Settings
from tests.support.gateway import AUTHORISED, CHAT
from tests.support.services import services_with

PAGE = "https://chat.example.com"
BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
def browser(tmp_path, engine, authenticator, metrics, limiter, sessions, journal, refusals):
    """A client of a gateway that allows one page."""

    def open_(*origins: str) -> TestClient:
        given = {"metrics": metrics, "limiter": limiter, "journal": journal, "sessions": sessions, "refusals": refusals}
        services = services_with(tmp_path, engine, authenticator, **given)
        return TestClient(create_app(Settings(data_dir=tmp_path, cors_origins=origins), services))

    return open_


def preflight(client, path=CHAT, origin=PAGE):
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-stainless-os"}
    return client.options(path, headers={"origin": origin} | asked)


def test_a_preflight_needs_no_key(browser) -> None:
    with browser(PAGE) as client:
        answer = preflight(client)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


def test_a_stream_and_a_refusal_name_the_origin_and_what_a_page_may_read(browser) -> None:
    with browser(PAGE) as client:
        stream = client.post(CHAT, json=BODY, headers=AUTHORISED | {"origin": PAGE})
        refused = client.post(CHAT, json=BODY, headers={"origin": PAGE})
    assert (stream.status_code, refused.status_code) == (200, 401)
    for answer in (stream, refused):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("origin", ["https://other.example.com", "http://chat.example.com", "null"])
def test_other_origins_are_not_allowed(browser, origin) -> None:
    with browser(PAGE) as client:
        assert preflight(client, origin=origin).status_code == 400
        answer = client.get("/v1/models", headers=AUTHORISED | {"origin": origin})
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("path", ["/admin/v1/tenants", "/console", "/metrics", "/v2"])
def test_other_paths_are_of_no_other_origin(browser, path) -> None:
    with browser("*") as client:
        assert "access-control-allow-origin" not in preflight(client, path).headers
        assert "access-control-allow-origin" not in client.get(path, headers={"origin": PAGE}).headers


def test_all_origins(browser) -> None:
    with browser("*") as client:
        assert preflight(client).headers["access-control-allow-origin"] in ("*", PAGE)


def test_without_the_setting_nothing_changes(browser) -> None:
    with browser() as client:
        assert preflight(client).status_code in (401, 405)
        answer = client.get("/v1/models", headers=AUTHORISED | {"origin": PAGE})
    assert [name for name in answer.headers if name.startswith("access-control")] == []


@pytest.mark.parametrize(
    "origin", ["chat.example.com", "https://chat.example.com/", "https://u:p@host", "ftp://host", ""]
)
def test_what_is_no_origin_is_refused_at_the_start(tmp_path, origin) -> None:
    with pytest.raises(ValidationError, match="an origin has the form"):
        Settings(data_dir=tmp_path, cors_origins=[origin])
