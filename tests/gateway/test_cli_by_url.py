"""Commands by URL: what is said of a gateway that is away, of another version, or none at all."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.support.command_line import failure, turnpike
from tests.support.servers import free_port

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch, no_settings: Any) -> None:
    monkeypatch.setenv("TURNPIKE_ADMIN_KEY", "tpa-s3cret")


@contextmanager
def answering(answers: dict[str, tuple[int, str, Any]]) -> Iterator[str]:
    """A server that has these answers: status, media type and body by path."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, media_type, body = answers.get(self.path.partition("?")[0], (404, "text/html", "nothing here"))
            content = (body if isinstance(body, str) else json.dumps(body)).encode()
            self.send_response(status)
            self.send_header("content-type", media_type)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def description(*operations: str, version: str = "0.0.1") -> dict[str, Any]:
    paths = {f"/{name}": {"get": {"operationId": name}} for name in operations}
    return {"openapi": "3.1.0", "info": {"version": version}, "paths": paths}


def test_a_gateway_of_another_version_is_said() -> None:
    answers = {
        "/admin/v1/openapi.json": (200, "application/json", description("listTenants")),
        "/admin/v1/listTenants": (200, "application/json", {"data": [], "next_cursor": None}),
    }
    with answering(answers) as url:
        result = turnpike("tenant", "list", "--json", "--url", url)
        assert (result.exit_code, result.stdout) == (0, "[]\n")
        assert "version 0.0.1" in result.stderr
        result = turnpike("audit", "verify", "--url", url)
        assert result.exit_code == 1
        assert "no operation verifyAudit" in result.stderr


@pytest.mark.parametrize(
    "answer",
    [
        (404, "text/html", "nothing here"),
        (200, "text/html", "<h1>hello</h1>"),
        (200, "application/json", {"hello": 1}),
        (200, "application/json", "not JSON"),
        (302, "text/plain", "elsewhere"),
    ],
)
def test_another_server_is_no_gateway(answer: tuple[int, str, Any]) -> None:
    with answering({"/prefix/admin/v1/openapi.json": answer}) as url:
        message = failure(1, "tenant", "list", "--url", f"{url}/prefix/")
    assert "does not answer as a Turnpike gateway" in message


def test_a_gateway_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert url in failure(1, "tenant", "list", "--url", url)
    monkeypatch.setenv("TURNPIKE_URL", url)
    message = failure(1, "invoice", "list")
    assert "connection refused" in message
    assert "s3cret" not in message
    assert "TURNPIKE_URL" in failure(1, "admin-key", "list")


@pytest.mark.parametrize("url", ["ftp://x", "gateway:8080", "http://", "http://a:b@x", "http://x:99999", "http://x?q"])
def test_what_is_no_url(url: str) -> None:
    assert "s3cret" not in failure(1, "tenant", "list", "--url", url)


def test_a_url_needs_a_key_and_excludes_a_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "exclude" in failure(2, "tenant", "list", "--url", "http://x", "--data-dir", "d")
    monkeypatch.delenv("TURNPIKE_ADMIN_KEY")
    assert "TURNPIKE_ADMIN_KEY" in failure(2, "tenant", "list", "--url", "http://x")


def test_a_list_is_read_page_by_page() -> None:
    """Printed pages stay when a later page fails."""
    page = {"data": [{"id": "1", "name": "a"}], "next_cursor": "next"}
    answers = {
        "/admin/v1/openapi.json": (200, "application/json", description("listTenants")),
        "/admin/v1/listTenants": (200, "application/json", page),
    }
    with answering(answers) as url:
        result = turnpike("request", "list", "--url", url)
        assert result.exit_code == 1
        from gateway.management.client import open_remote

        with open_remote(url, "key", lambda _: None) as client:
            assert len(list(client.items("listTenants", limit=3))) == 3
