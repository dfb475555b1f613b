"""Keys, paths, methods, request ids, bounds on the frame, the access log, and faults of our own."""

import re
from importlib.metadata import version

import pytest
import structlog
from starlette.testclient import TestClient

from gateway.tenancy.errors import TenantSuspended
from tests.support.error_envelope import error_of
from tests.support.gateway import AUTHORISED, CHAT, KEY, MAX_BODY_BYTES

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "a secret question"}]}


@pytest.fixture
def stranger(app):
    """A client without a key."""
    with TestClient(app) as client:
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer"},
        {"authorization": KEY},
        {"authorization": f"Basic {KEY}"},
        {"authorization": "Bearer \xff\xfe".encode("latin-1")},
        {"authorization": "Bearer ' OR 1=1 --"},
        {"x-api-key": "wrong"},
        {"x-api-key": ""},
        {"authorization": "Bearer wrong", "x-api-key": KEY},
    ],
)
def test_without_a_key_that_opens(stranger, engine, headers):
    error = error_of(stranger.post(CHAT, json=BODY, headers=headers), 401)
    assert error["code"] == "invalid_api_key"
    assert engine.calls == []


def test_401_says_how(stranger):
    assert stranger.get("/v1/models").headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "headers", [{"authorization": f"Bearer {KEY}"}, {"authorization": f"bearer  {KEY} "}, {"x-api-key": KEY}]
)
def test_where_a_key_may_stand(stranger, headers):
    assert stranger.get("/v1/models", headers=headers).status_code == 200


def test_the_front_page_says_what_this_is_and_loads_nothing(stranger):
    page = stranger.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert f"Turnpike {version('turnpike')}" in page.text
    links = re.findall(r'href="([^"]+)"', page.text)
    assert links == ["/docs", "/openapi.json", "/health", "/readyz", "/metrics"], (
        "an application without administrators has no console"
    )
    assert [stranger.get(link).status_code for link in links] == [200] * len(links)
    assert not re.search(r"src=|<link|https?:", page.text)


@pytest.mark.parametrize(("path", "kind"), [(CHAT, "invalid_request_error"), ("/v1/messages", "permission_error")])
def test_a_suspended_tenant_is_not_sent_to_look_for_a_wrong_key(stranger, authenticator, engine, path, kind):
    async def suspended(presented: str):
        raise TenantSuspended("the tenant is suspended")

    authenticator.authenticate = suspended
    response = stranger.post(path, json=BODY, headers=AUTHORISED)
    assert response.status_code == 403
    error = response.json()["error"]
    assert error["type"] == kind
    assert "suspended" in error["message"]
    assert error.get("code", "tenant_suspended") == "tenant_suspended"
    assert engine.calls == []


def test_the_open_paths_are_these_and_no_others(stranger, app):
    documents = {"/openapi.json", "/docs", "/docs/reference.css"}
    open_paths = {"/", "/health", "/healthz", "/readyz", "/version", "/metrics"} | documents
    for route in app.routes:
        status = stranger.request("GET", route.path.replace("{id:path}", "tiny")).status_code
        assert (status == 200) == (route.path in open_paths), route.path
        assert status in (200, 401)


@pytest.mark.parametrize(
    "path",
    [
        "/nope",
        "/v1",
        "/healthz/",
        "/healthz/../v1/models",
        "http://testserver//healthz",
        "/HEALTHZ",
        "/v1/models/",
        "/docs/",
    ],
)
def test_paths_that_are_not_open_need_a_key_even_if_unknown(stranger, path):
    error_of(stranger.get(path), 401)


@pytest.mark.parametrize("host", ["x/healthz?", "healthz", "x/metrics#", "localhost/healthz/"])
def test_the_host_header_opens_nothing(stranger, host):
    error_of(stranger.get("/v1/models", headers={"host": host}), 401)


def test_keys_that_cannot_be_checked(stranger, authenticator):
    authenticator.down = True
    response = stranger.get("/v1/models", headers=AUTHORISED)
    assert "db.internal" not in response.text
    error_of(response, 503)
    assert response.headers["retry-after"] == "5"


@pytest.mark.parametrize("path", ["/nope", "/v1/chat/completions/", "/v1/chat", "/v1/models/unknown"])
def test_unknown_urls(client, path):
    error_of(client.get(path, follow_redirects=False), 404)


@pytest.mark.parametrize(
    ("method", "path", "allowed"), [("GET", CHAT, {"POST"}), ("DELETE", "/v1/models", {"GET", "HEAD"})]
)
def test_other_methods(client, method, path, allowed):
    response = client.request(method, path)
    error_of(response, 405)
    assert set(response.headers["allow"].split(", ")) == allowed


@pytest.mark.parametrize("sane", ["abc", "A-1_2.3:4/5+6=", "x" * 128])
def test_a_sane_request_id_is_kept(client, sane):
    assert client.get("/v1/models", headers={"x-request-id": sane}).headers["x-request-id"] == sane
    assert client.get("/nope", headers={"x-request-id": sane}).headers["x-request-id"] == sane


@pytest.mark.parametrize("other", ["", "a b", "x" * 129, "<script>", "é"])
def test_any_other_is_replaced(client, other):
    given = client.get("/healthz", headers={"x-request-id": other.encode()}).headers["x-request-id"]
    assert given.startswith("req_")
    assert given != client.get("/healthz").headers["x-request-id"]


def test_a_body_over_the_bound_by_what_it_says(client):
    response = client.post(CHAT, content=b"x" * (MAX_BODY_BYTES + 1), headers={"content-type": "application/json"})
    error_of(response, 413)


@pytest.mark.parametrize("stated", [None, "5", "0"])
def test_a_body_over_the_bound_by_what_it_is(client, stated):
    headers = {"content-type": "application/json"} | ({"content-length": stated} if stated else {})
    chunks = (b" " * 10_000 for _ in range(30))
    error_of(client.post(CHAT, content=chunks, headers=headers), 413)


@pytest.mark.parametrize(("stated", "status"), [("9" * 30, 413), ("-1", 400), ("0x10", 400), ("5, 6", 400), ("٥", 400)])
def test_a_content_length_that_is_no_length_of_this_body(client, stated, status):
    headers = {"content-type": "application/json", "content-length": stated.encode()}
    error_of(client.post(CHAT, content=iter([b"{}"]), headers=headers), status)


@pytest.mark.parametrize("headers", [{"x-big": "x" * 40_000}, {f"x-{i}": "1" for i in range(120)}])
def test_headers_over_the_bound(client, headers):
    error_of(client.get("/v1/models", headers=headers), 431)


def test_websockets_are_refused(client):
    with pytest.raises(Exception), client.websocket_connect("/v1/models"):  # noqa: B017, PT011
        pass


def test_readiness_follows_the_engine(client, engine):
    assert client.get("/readyz").status_code == 200
    engine.ready = False
    assert client.get("/readyz").status_code == 503
    assert client.get("/healthz").status_code == 200
    error_of(client.post(CHAT, json=BODY), 503)


def test_the_lifespan_starts_and_ends_what_was_given(app, engine, authenticator):
    assert not engine.ready
    with TestClient(app):
        assert engine.ready
    assert (engine.closed, authenticator.closed) == (True, True)


@pytest.fixture
def log(client):
    """Lines of the log, once the application is up."""
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        yield lines


def test_the_access_log_says_who_what_and_how_long(client, log):
    response = client.post(CHAT + "?prompt=secret", json=BODY, headers={"x-request-id": "r-1"})
    assert response.status_code == 200
    [line] = log
    duration_ms = line.pop("duration_ms")
    assert duration_ms > 0
    assert line == {
        "event": "request",
        "log_level": "info",
        "request_id": "r-1",
        "tenant": "acme",
        "key_id": "pubid1",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "error": None,
    }


def test_the_log_never_holds_a_key_or_a_prompt(client, log, engine):
    engine.reply = "a secret answer"
    client.post(CHAT, json=BODY)
    client.post(CHAT, json=BODY | {"temperature": "a secret value"})
    client.post(CHAT, json=BODY, headers={"authorization": "Bearer secret"})
    engine.crash_at = 0
    client.post(CHAT, json=BODY)
    assert [line["error"] for line in log if line["event"] == "request"] == [
        None,
        "invalid_type",
        "invalid_api_key",
        "internal_error",
    ]
    assert "secret" not in str([{k: v for k, v in line.items() if k != "exc_info"} for line in log])
    assert KEY not in str(log)


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_of_ours_is_500_without_detail_and_logged_with_its_stack(client, log, engine, stream):
    engine.crash_at = 0
    response = client.post(CHAT, json=BODY | {"stream": stream})
    error = error_of(response, 500)
    assert error["code"] == "internal_error"
    assert "srv" not in response.text
    assert "secret" not in response.text
    fault, access = log
    assert isinstance(fault["exc_info"], RuntimeError)
    assert fault["exc_info"].__traceback__ is not None
    assert (access["status"], access["request_id"]) == (500, response.headers["x-request-id"])


@pytest.mark.parametrize("stream", [True, False])
def test_a_failure_in_the_engine_is_500_and_its_reason_is_logged(client, log, engine, stream):
    engine.fail_at = 0
    response = client.post(CHAT, json=BODY | {"stream": stream})
    assert error_of(response, 500)["code"] == "engine_error"
    assert "0x7f" not in response.text
    assert [line.get("reason") for line in log] == ["NaN in the logits at 0x7f00dead", None]
    assert engine.live == set()


def test_the_version_needs_no_key(stranger) -> None:
    assert stranger.get("/version").json() == {"version": version("turnpike")}
