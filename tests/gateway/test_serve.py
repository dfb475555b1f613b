"""`turnpike serve` as a process: from the command to an answer, and down again on a signal."""

import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gateway.process.demo_banner import DEMO_QUESTION, demo_banner
from gateway.process.listener import bind, local_url
from tests.support.demo_banner import commands_of, key_of, read_banner
from tests.support.servers import free_port


class Gateway:
    """`turnpike serve --demo` with a fake engine, in a data directory of its own."""

    def __init__(self, folder: Path, port: int) -> None:
        self.log = folder / "log"
        self.environment = {
            **os.environ,
            "TURNPIKE_DATA_DIR": str(folder / "data"),
            "TURNPIKE_LOG_FORMAT": "json",
            "TURNPIKE_PRICES": json.dumps({"tiny": ["0.1", "0.4"], "org/tiny-2": ["0.1", "0.4"]}),
        }
        command = [sys.executable, "-m", "tests.support.fake_engine_program", "serve", "--demo", "--port", str(port)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.url = f"http://127.0.0.1:{port}"
        self.banner = self._read_banner()
        self.key = key_of(self.banner)
        self.console_link = self._read_link()

    def _read_banner(self) -> str:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(30), self.log.read_text()
        return read_banner(self.process.stdout)

    def paste(self) -> str:
        """Run the banner's commands in a shell and return their output."""
        shell = ["bash", "-ec", commands_of(self.banner)]
        return subprocess.run(shell, capture_output=True, text=True, timeout=60, check=True).stdout

    def _read_link(self) -> str:
        """The link to the console, a line of its own below the banner."""
        assert self.process.stdout is not None
        return next(line.strip() for line in self.process.stdout if line.startswith("http"))

    def turnpike(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Another command on the same data."""
        command = [Path(sys.executable).with_name("turnpike"), *arguments]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self, signal_number: int) -> int:
        self.process.send_signal(signal_number)
        return self.process.wait(30)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with closing(Gateway(tmp_path_factory.mktemp("gateway"), free_port())) as gateway:
        yield gateway


def test_the_printed_request_streams_an_answer(gateway: Gateway) -> None:
    chunks = [line.removeprefix("data: ") for line in gateway.paste().splitlines() if line.startswith("data: ")]
    assert chunks.pop() == "[DONE]"
    deltas = [choice["delta"] for chunk in chunks for choice in json.loads(chunk)["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "Paris is the capital"


def test_the_banner_leads_to_everything_and_fits_a_terminal(gateway: Gateway) -> None:
    data = gateway.environment["TURNPIKE_DATA_DIR"]
    assert f"{gateway.url}/console" in gateway.banner
    assert f"{gateway.url}/docs" in gateway.banner
    assert data in gateway.banner
    assert f"rm -r {data}" in gateway.banner
    assert "temperature" not in gateway.banner
    assert all(len(line) <= 80 for line in gateway.banner.splitlines() if data not in line and "rm -r" not in line)


def test_the_printed_link_logs_in_to_the_console_once(gateway: Gateway) -> None:
    link, token = gateway.console_link, gateway.console_link.partition("token=")[2]
    assert link.startswith(f"{gateway.url}/console/link?")
    with httpx.Client() as browser:
        assert browser.get(link).status_code == 200
        answer = browser.post(f"{gateway.url}/console/link", data={"token": token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/console")
        assert browser.get(f"{gateway.url}/console/tenants").status_code == 200
    assert httpx.post(f"{gateway.url}/console/link", data={"token": token}).status_code == 401
    assert token not in gateway.log.read_text()


def test_a_revoked_key_is_refused_within_five_seconds(gateway: Gateway) -> None:
    """On the wall clock, through the command line and the database."""
    key = gateway.turnpike("key", "create", "--tenant", "demo").stdout.strip()
    models = f"{gateway.url}/v1/models"
    authorised = {"authorization": f"Bearer {key}"}
    assert httpx.get(models, headers=authorised).status_code == 200
    assert gateway.turnpike("key", "revoke", key[3:15]).returncode == 0
    revoked_at = time.monotonic()
    while httpx.get(models, headers=authorised).status_code == 200:
        assert time.monotonic() - revoked_at < 5
        time.sleep(0.1)


def test_metrics_are_served(gateway: Gateway) -> None:
    text = httpx.get(f"{gateway.url}/metrics").text
    assert "gen_ai_server_request_duration_seconds" in text


def test_a_port_in_use_is_one_line(gateway: Gateway) -> None:
    port = gateway.url.rpartition(":")[2]
    done = gateway.turnpike("serve", "--port", port)
    assert done.returncode == 1
    assert done.stderr.startswith("turnpike: ")
    assert port in done.stderr
    assert done.stderr.count("\n") == 1


def test_sigterm_lets_streams_end_and_exits_with_0(gateway: Gateway) -> None:
    """Last: it ends the gateway. Then its log is searched for what should not be there."""
    headers = {"authorization": f"Bearer {gateway.key}"}
    body = {"model": "tiny", "messages": [{"role": "user", "content": "a private question"}], "stream": True}
    seen: list[str] = []
    started = threading.Event()

    def read() -> None:
        with httpx.stream("POST", f"{gateway.url}/v1/chat/completions", headers=headers, json=body) as response:
            for line in response.iter_lines():
                seen.append(line)
                started.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert started.wait(60)
    assert gateway.stop(signal.SIGTERM) == 0
    reader.join(60)
    assert "data: [DONE]" in seen

    log = gateway.log.read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"ready", "request"} <= {line["event"] for line in lines}
    assert gateway.key[16:] not in log
    assert not re.search(r"tp-[a-z0-9]{12}-[A-Za-z0-9]", log)
    assert "private question" not in log
    assert "capital" not in log
    pepper = Path(gateway.environment["TURNPIKE_DATA_DIR"], "secrets", "pepper").read_text().strip()
    assert pepper not in log


def test_tenants_of_a_tier_that_is_gone_are_named_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data_dir = ("--data-dir", str(tmp_path / "data"))
    create = [Path(sys.executable).with_name("turnpike"), "tenant", "create", "acme", "--tier", "premium", *data_dir]
    subprocess.run(create, check=True, capture_output=True)
    monkeypatch.setenv("TURNPIKE_SERVICE_CLASSES", '{"gold": {"priority": 1}, "bulk": {"priority": 2}}')
    with closing(Gateway(tmp_path, free_port())) as gateway:
        assert "[DONE]" in gateway.paste()
        assert gateway.turnpike("tenant", "list").stdout.split("demo")[1].split()[0] == "bulk"
        warnings = [
            line for line in map(json.loads, gateway.log.read_text().splitlines()) if line["level"] == "warning"
        ]
    assert [warning["tenants_by_tier"] for warning in warnings] == [{"premium": 1}]


def test_the_banner_survives_a_shell() -> None:
    name = 'it\'s "odd" $HOME'
    key = "tp-" + "a" * 56
    banner = demo_banner("http://127.0.0.1:8080", name, key, Path("/a folder"), Path("/models"))
    script = f"curl() {{ printf '%s\\0' \"$@\"; }}\n{commands_of(banner)}"
    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, check=True)
    arguments = done.stdout.split("\0")
    assert f"Authorization: Bearer {key}" in arguments
    body = json.loads(arguments[arguments.index("-d") + 1])
    assert body == {"model": name, "stream": True, "messages": [{"role": "user", "content": DEMO_QUESTION}]}
    assert "rm -r '/a folder'" in banner


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")])
def test_the_url_is_one_that_this_machine_can_reach(host: str, shown: str) -> None:
    with bind(host, 0) as listener:
        assert local_url(listener) == f"http://{shown}:{listener.getsockname()[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_url_has_brackets() -> None:
    with socket.socket(socket.AF_INET6) as listener:
        listener.bind(("::1", 0))
        assert local_url(listener).startswith("http://[::1]:")
