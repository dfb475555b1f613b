"""Alertmanager as the compose file starts it, with and without a webhook; an alert of Prometheus arrives there."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import httpx
import pytest
import yaml

from tests.deploy.compose import ROOT, load_compose, required_variables
from tests.deploy.prometheus_server import running_prometheus
from tests.support.servers import START_DEADLINE_S, ServerMissing, free_port

FOLDER = ROOT / "deploy" / "alertmanager"
SERVICES: dict[str, dict[str, Any]] = load_compose(dict.fromkeys(required_variables(), "x"))["services"]
SERVICE = SERVICES["alertmanager"]
MISSING = "Alertmanager is not installed: apt-get install -y --no-install-recommends prometheus-alertmanager"


def started(url: str, program: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """start.sh to the end of what it starts."""
    return subprocess.run(
        [FOLDER / "start.sh", *options],
        env={
            "PATH": os.environ["PATH"],
            "TMPDIR": str(folder),
            "ALERTMANAGER": program,
            **({"ALERT_WEBHOOK_URL": url} if url else {}),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def external_url(service: str) -> list[str]:
    return [option for option in SERVICES[service]["command"] if option.startswith("--web.external-url=")]


def receivers(folder: Path) -> list[dict[str, Any]]:
    made = yaml.safe_load((folder / "alertmanager.yml").read_text(encoding="utf-8"))
    return list(made["receivers"])


def test_without_a_webhook_it_sends_nothing(tmp_path: Path) -> None:
    assert started("", "true", tmp_path).returncode == 0
    assert receivers(tmp_path) == [{"name": "page"}, {"name": "ticket"}]


def test_a_webhook_goes_to_each_receiver_and_into_a_file_of_its_own(tmp_path: Path) -> None:
    url = "https://user:p%40ss@hooks.example.com/T0/B1?a=b&c=d,e;f(1)!$x*+~"
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\nenv\necho "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    done = started(url, str(program), tmp_path, "--web.listen-address=:9093")
    assert done.returncode == 0, done.stderr
    assert f"--config.file={tmp_path / 'alertmanager.yml'} --web.listen-address=:9093" in done.stdout
    for each in receivers(tmp_path):
        assert each["webhook_configs"] == [{"url": url, "send_resolved": True}]
    assert url not in done.stdout, "what it starts has the file, and not the variable"
    assert (tmp_path / "alertmanager.yml").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("url", ["hooks.example.com/x", "file:///etc/passwd", 'https://x/"\n- b', "https://x/a b"])
def test_what_is_no_url_is_rejected(url: str, tmp_path: Path) -> None:
    done = started(url, "true", tmp_path)
    assert done.returncode == 2
    assert "ALERT_WEBHOOK_URL is not a URL" in done.stderr
    assert url not in done.stderr


@pytest.mark.parametrize("url", ["", "https://hooks.example.com/x"])
def test_it_takes_its_configuration(url: str, tmp_path: Path) -> None:
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.skip(MISSING)
    started(url, "true", tmp_path)
    checked = subprocess.run(
        [amtool, "check-config", tmp_path / "alertmanager.yml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "2 receivers" in checked.stdout


@pytest.mark.parametrize(
    ("labels", "receiver"), [(["severity=page"], "page"), (["severity=ticket"], "ticket"), (["severity=new"], "ticket")]
)
def test_pages_and_tickets_take_different_ways(labels: list[str], receiver: str) -> None:
    amtool = shutil.which("amtool")
    if amtool is None:
        pytest.skip(MISSING)
    routed = subprocess.run(
        [amtool, "config", "routes", "test", f"--config.file={FOLDER / 'alertmanager.yml'}", *labels],
        capture_output=True,
        text=True,
        check=False,
    )
    assert routed.stdout.strip() == receiver, routed.stderr


def test_prometheus_sends_to_the_service() -> None:
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (targets,) = [each["static_configs"] for each in config["alerting"]["alertmanagers"]]
    (listening,) = [each for each in SERVICE["command"] if each.startswith("--web.listen-address=")]
    assert targets == [{"targets": [f"alertmanager:{listening.rpartition(':')[2]}"]}]
    assert f"./{FOLDER.relative_to(ROOT)}:/etc/alertmanager:ro" in SERVICE["volumes"]
    assert SERVICE["entrypoint"] == ["sh", "/etc/alertmanager/start.sh"]


@contextmanager
def webhook() -> Iterator[tuple[str, "Queue[dict[str, Any]]"]]:
    """An address that takes what is sent there, and what came."""
    came: Queue[dict[str, Any]] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            came.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/alerts", came
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running_alertmanager(url: str, folder: Path) -> Iterator[str]:
    """By start.sh and the service's own options, at another address; it groups for less long."""
    program = shutil.which("prometheus-alertmanager")
    if program is None:
        raise ServerMissing(MISSING)
    shutil.copytree(FOLDER, folder / "etc")
    config = folder / "etc" / "alertmanager.yml"
    config.write_text(config.read_text(encoding="utf-8").replace("group_wait: 10s", "group_wait: 1s"), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    places = {"0.0.0.0:9093": address, "=/alertmanager": f"={folder / 'data'}"}
    options = list(SERVICE["command"])
    for place, here in places.items():
        options = [option.replace(place, here) for option in options]
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [folder / "etc" / "start.sh", *options],
            env={
                "PATH": os.environ["PATH"],
                "TMPDIR": str(folder),
                "ALERTMANAGER": program,
                "ALERT_WEBHOOK_URL": url,
            },
            stdout=output,
            stderr=output,
        )
    try:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            said = log.read_text(errors="replace")
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            try:
                if httpx.get(f"http://{address}/-/ready").status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.02)
        yield address
    finally:
        process.terminate()
        process.wait()


def test_an_alert_of_prometheus_arrives_at_the_webhook(tmp_path: Path) -> None:
    """One of ours: no gateway answers."""
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    (down,) = [
        rule
        for group in rules["groups"]
        for rule in group["rules"]
        if rule.get("alert") == "TurnpikeGatewayDown" and rule["labels"]["severity"] == "page"
    ]
    file = tmp_path / "alerts.yml"
    soon = {"groups": [{"name": "soon", "interval": "200ms", "rules": [{**down, "for": "0s"}]}]}
    file.write_text(yaml.safe_dump(soon), encoding="utf-8")
    try:
        with webhook() as (url, came), running_alertmanager(url, tmp_path) as address:
            config = {
                "global": {"external_labels": {"runbook_base": "https://docs.example.com/"}},
                "rule_files": [str(file)],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": [address]}]}]},
            }
            # It sends an alert again, as it finds Alertmanager later than its first alert.
            options = [*external_url("prometheus"), "--rules.alert.resend-delay=1s"]
            with running_prometheus(yaml.safe_dump(config), *options):
                message = came.get(timeout=60)
    except ServerMissing as error:
        pytest.skip(str(error))
    assert (message["status"], message["receiver"]) == ("firing", "page")
    assert message["externalURL"] == "http://127.0.0.1:9093"
    (alert,) = message["alerts"]
    assert alert["generatorURL"].startswith("http://127.0.0.1:9090/graph?"), "a link that its reader can open"
    assert alert["labels"]["alertname"] == "TurnpikeGatewayDown"
    assert alert["annotations"]["summary"] == down["annotations"]["summary"]
    assert alert["annotations"]["runbook_url"] == ("https://docs.example.com/docs/runbooks.md#turnpikegatewaydown")
