"""Shutdown of the gateway: its answers in that time, the outcome of running requests, and its exit status."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from gateway.metering.event import Ending, UsageEvent
from gateway.metering.journal.journal_file import JournalFile
from tests.e2e.kill.zygote import MODEL, Gateway, Zygote
from tests.support.program import turnpike
from tests.support.servers import free_port
from tests.support.usage_requests import journalled

FOREVER = 600
"""Seconds: longer than any test."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES, EMBEDDINGS = "/v1/messages", "/v1/responses", "/v1/embeddings"
SHORT, LONG = 40, 600
"""Tokens of an answer: at 5 ms each, one that ends in a drain, and one that outlasts a deadline of a second."""


def body(path: str, tokens: int, stream: bool) -> dict[str, Any]:
    asked: dict[str, Any] = {"model": MODEL, "stream": stream}
    if path == EMBEDDINGS:
        return {"model": MODEL, "input": "hi"}
    if path == RESPONSES:
        return asked | {"input": "hi", "max_output_tokens": tokens}
    if path == COMPLETIONS:
        return asked | {"prompt": "hi", "max_tokens": tokens}
    return asked | {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens}


@dataclass
class Running:
    """A gateway whose engine makes a token of each byte, every 5 ms."""

    zygote: Zygote
    gateway: Gateway
    key: str
    journal: Path
    http: httpx.Client
    over: bool = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}", "content-type": "application/json"}

    def post(self, path: str, tokens: int) -> httpx.Response:
        """A whole answer."""
        return self.http.post(self.url + path, json=body(path, tokens, False), headers=self.headers)

    def stream(self, path: str, tokens: int) -> Iterator[bytes]:
        """The data of each event, to the end; the first one is there on return."""
        connection = http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=60)
        connection.request("POST", path, orjson.dumps(body(path, tokens, True)), self.headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        first = _next_event(response)

        def events() -> Iterator[bytes]:
            event = first
            while event:
                yield event
                event = _next_event(response)
            connection.close()

        return events()

    def signal(self, number: int = signal.SIGTERM) -> None:
        os.kill(self.gateway.pid, number)

    def exit_status(self) -> int:
        """Waits for its end."""
        self.over = True
        return self.zygote.end(self.gateway.pid, 0)

    def is_ready(self) -> bool:
        try:
            return self.http.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def begins_to_drain(self) -> None:
        self.signal()
        until(lambda: self.http.get(f"{self.url}/readyz").json() == {"status": "draining"})

    def events(self) -> list[UsageEvent]:
        return journalled(self.journal)

    def open_requests(self) -> int:
        with closing(JournalFile(self.journal, read_only=True)) as file:
            return len(file.open_requests())


def _next_event(response: http.client.HTTPResponse) -> bytes:
    while line := response.readline():
        if line.startswith(b"data: "):
            return line.removeprefix(b"data: ").strip()
    return b""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Zygote, str, Path, httpx.Client]]:
    """A zygote that starts gateways on one data directory, a key, their journal, and a client."""
    folder = tmp_path_factory.mktemp("life")
    data = folder / "data"
    environment = {
        "TURNPIKE_DATA_DIR": str(data),
        "TURNPIKE_PRICES": json.dumps({MODEL: ["0.1", "0.05", "0.4"]}),
        "TURNPIKE_ANALYTICS_URL": "chdb://memory",
        "TURNPIKE_LOG_FORMAT": "json",
    }
    turnpike("tenant", "create", "acme", "--tier", "standard", environment=environment)
    key = turnpike("key", "create", "--tenant", "acme", environment=environment)
    with closing(Zygote(environment, folder / "log")) as zygote, httpx.Client(verify=False, timeout=60) as http:
        yield zygote, key, data / "usage" / "journal.db", http


@pytest.fixture
def start(site: tuple[Zygote, str, Path, httpx.Client]) -> Iterator[Callable[..., Running]]:
    """Starts a gateway with settings of its own, when the one before it has ended."""
    zygote, key, journal, http = site
    gateways: list[Running] = []

    def started(**settings: float) -> Running:
        running = Running(zygote, zygote.gateway(**settings), key, journal, http)
        gateways.append(running)
        until(running.is_ready)
        return running

    yield started
    for each in gateways:
        if not each.over:  # its test has failed
            zygote.end(each.gateway.pid)


def text_of(chunks: list[bytes]) -> str:
    """Of a chat's stream."""
    parsed = [orjson.loads(chunk) for chunk in chunks if chunk != b"[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in parsed for choice in chunk.get("choices", ()))


def test_while_it_drains_it_answers_all_but_new_work(start):
    running = start(shutdown_deadline_s=FOREVER)
    stream = running.stream(CHAT, LONG)
    running.begins_to_drain()

    ready = running.http.get(f"{running.url}/readyz")
    assert (ready.status_code, ready.headers["connection"]) == (503, "close")
    assert running.http.get(f"{running.url}/healthz").status_code == 200
    assert "gen_ai_server_request_duration_seconds" in running.http.get(f"{running.url}/metrics").text
    assert running.http.get(f"{running.url}/v1/models", headers=running.headers).status_code == 200
    assert running.http.get(f"{running.url}/admin/v1/tenants").status_code == 401

    for path in (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS):
        refused = running.post(path, SHORT)
        assert refused.status_code == 503, refused.text
        assert refused.json()["error"]["code"] == "shutting_down"
        assert refused.headers["connection"] == "close"
        assert int(refused.headers["retry-after"]) > 0
    spelt = running.post(MESSAGES, SHORT)
    assert (spelt.status_code, spelt.json()["type"], spelt.json()["error"]["type"]) == (503, "error", "api_error")

    chunks = list(stream)
    assert chunks[-1] == b"[DONE]"
    assert len(text_of(chunks)) == LONG
    assert running.exit_status() == 0
    assert running.events()[-1].completion_tokens == LONG


def test_what_the_deadline_cuts_is_told_so_in_each_dialect_and_billed_for_what_was_sent(start):
    running = start(shutdown_deadline_s=1)
    before = len(running.events())
    streams = {path: running.stream(path, LONG) for path in (CHAT, MESSAGES, RESPONSES)}
    with ThreadPoolExecutor() as pool:
        whole = pool.submit(running.post, CHAT, LONG)
        until(lambda: running.open_requests() == 4)
        running.signal()
        seen = {path: list(events) for path, events in streams.items()}
        cut_whole = whole.result()
    assert running.exit_status() == 0

    assert orjson.loads(seen[CHAT][-1])["error"]["code"] == "shutting_down"
    assert orjson.loads(seen[MESSAGES][-1])["type"] == "error"
    assert [orjson.loads(event)["type"] for event in seen[RESPONSES][-2:]] == ["error", "response.failed"]
    assert cut_whole.status_code == 503
    assert cut_whole.json()["error"]["code"] == "shutting_down"

    events = {event.request_id: event for event in running.events()[before:]}
    assert {event.finish_reason for event in events.values()} == {Ending.INTERRUPTED}
    chat = events[orjson.loads(seen[CHAT][0])["id"]]
    assert chat.completion_tokens == len(text_of(seen[CHAT])) < LONG
    said = "".join(
        event["delta"]["text"] for event in map(orjson.loads, seen[MESSAGES]) if event["type"] == "content_block_delta"
    )
    assert events[orjson.loads(seen[MESSAGES][0])["message"]["id"]].completion_tokens == len(said)
    # Of the whole answer nothing was sent.
    assert min(event.completion_tokens for event in events.values()) == 0
    assert len(events) == 4


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once_and_the_next_start_bills_what_was_sent(start, number, status):
    running = start(shutdown_deadline_s=FOREVER)
    before = len(running.events())
    stream = running.stream(CHAT, LONG)
    until(lambda: running.open_requests() == 1)  # on the disk: a kill before that loses the request
    running.begins_to_drain()
    running.signal(number)
    assert running.exit_status() == status
    received = list(stream)
    assert b"[DONE]" not in received

    after = start()
    [event] = after.events()[before:]
    assert event.finish_reason is Ending.INTERRUPTED
    assert event.completion_tokens <= len(text_of(received))
    after.signal()
    assert after.exit_status() == 0


def test_the_listener_stays_open_for_the_delay_though_nothing_runs(start):
    running = start(shutdown_deadline_s=FOREVER, drain_delay_s=FOREVER)
    running.begins_to_drain()
    for _ in range(20):  # of the server's looks at whether it is time
        assert running.http.get(f"{running.url}/healthz").status_code == 200
        time.sleep(0.02)
    running.signal()
    assert running.exit_status() == 143


HEALTHY = b'{"status":"ok"}'


def test_idle_connections_end_with_the_drain(start):
    running = start(shutdown_deadline_s=FOREVER)
    with socket.create_connection(("127.0.0.1", running.gateway.port), 30) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        with idle.makefile("rb") as answers:
            while answers.readline() != b"\r\n":
                pass
            assert answers.read(len(HEALTHY)) == HEALTHY
            running.signal()
            assert answers.read() == b""
    assert running.exit_status() == 0


def test_a_signal_while_it_starts_ends_it_at_once_without_a_trace(tmp_path):
    loading = "import time\nfrom gateway.process import serve\n"
    loading += "def load(*_):\n  print('loading', flush=True)\n  time.sleep(600)\n"
    command = f"{loading}serve.load_engine = load\nfrom gateway.management.cli import main\nmain()"
    environment = {**os.environ, "TURNPIKE_DATA_DIR": str(tmp_path)}
    arguments = [sys.executable, "-c", command, "serve", "--port", str(free_port())]
    process = subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == ""
