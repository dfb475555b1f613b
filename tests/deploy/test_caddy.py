"""The Caddyfile of the compose file's profile `tls`: the API by TLS, event by event, and nothing else."""

import os
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.deploy.compose import ROOT, load_compose, required_variables
from tests.support.servers import START_DEADLINE_S, free_port

CADDYFILE = ROOT / "deploy" / "compose" / "Caddyfile"
SERVICES = load_compose(dict.fromkeys(required_variables(), "x"))["services"]
HEALTH, TLS, PLAIN = "8081", "8443", "8080"


@dataclass
class Upstream:
    """Stand-in of the gateway: it writes an event, and the second one once the first was read."""

    server: ThreadingHTTPServer
    first_was_read: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append(self.path)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"data: 1\n\n")
            self.wfile.flush()
            if made.first_was_read.wait(START_DEADLINE_S):
                self.wfile.write(b"data: 2\n\n")

        def log_message(self, *_: object) -> None:
            pass

    made = Upstream(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.first_was_read.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(scope="module")
def ports() -> dict[str, str]:
    return {port: str(free_port()) for port in (HEALTH, TLS, PLAIN)}


@pytest.fixture(scope="module")
def caddy(
    upstream: Upstream, ports: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of Caddy that trusts the authority which Caddy made for localhost."""
    program = shutil.which("caddy")
    if program is None:
        pytest.skip("Caddy is not installed: apt-get install -y --no-install-recommends caddy")
    folder = tmp_path_factory.mktemp("caddy")
    config = CADDYFILE.read_text(encoding="utf-8")
    for stated, here in ports.items():
        config = config.replace(f"port {stated}", f"port {here}").replace(f"127.0.0.1:{stated}", f"127.0.0.1:{here}")
    (folder / "Caddyfile").write_text(config, encoding="utf-8")
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, "run", "--config", folder / "Caddyfile"],
            stdout=output,
            stderr=output,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "XDG_DATA_HOME": str(folder),
                "TURNPIKE_UPSTREAM": f"127.0.0.1:{upstream.server.server_port}",
                **SERVICES["caddy"]["environment"],
            },
        )
    authority = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"

    def await_answer(ask: Callable[[], object]) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            said = log.read_text(errors="replace")
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            try:
                ask()
                return
            except (httpx.TransportError, FileNotFoundError):
                time.sleep(0.05)

    try:
        await_answer(lambda: httpx.get(f"http://127.0.0.1:{ports[HEALTH]}/").raise_for_status())
        await_answer(authority.read_bytes)
        trusted = ssl.create_default_context(cafile=str(authority))
        with httpx.Client(verify=trusted, base_url=f"https://localhost:{ports[TLS]}", timeout=30) as client:
            await_answer(lambda: client.get("/"))
            yield client
    finally:
        process.terminate()
        process.wait()


def test_a_stream_passes_event_by_event(caddy: httpx.Client, upstream: Upstream) -> None:
    with caddy.stream("GET", "/v1/chat/completions") as answer:
        assert answer.status_code == 200
        chunks = answer.iter_raw()
        assert next(chunks) == b"data: 1\n\n"
        upstream.first_was_read.set()
        assert b"".join(chunks) == b"data: 2\n\n"


@pytest.mark.parametrize("path", ["/metrics", "/console", "/admin/v1/tenants", "/readyz", "/v10", "/"])
def test_nothing_but_the_api_passes(path: str, caddy: httpx.Client, upstream: Upstream) -> None:
    before = list(upstream.asked)
    assert caddy.get(path).status_code == 404
    assert upstream.asked == before


def test_plain_http_is_led_to_tls(caddy: httpx.Client, ports: dict[str, str]) -> None:
    answer = httpx.get(f"http://localhost:{ports[PLAIN]}/v1/models")
    assert answer.status_code == 308
    assert answer.headers["location"].startswith("https://localhost")


def test_the_service_publishes_and_watches_its_ports() -> None:
    service = SERVICES["caddy"]
    assert {port.partition("/")[0] for port in service["ports"]} == {f"80:{PLAIN}", f"443:{TLS}"}
    assert f":{HEALTH}/" in service["healthcheck"]["test"][-1]
    assert f"./{CADDYFILE.relative_to(ROOT)}:/etc/caddy/Caddyfile:ro" in service["volumes"]
    assert set(service["networks"]) & set(SERVICES["gateway"]["networks"])
