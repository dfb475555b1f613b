"""Commands next to a running gateway with the embedded stores: over its socket, and by its URL with a key."""

import json
import os
import pwd
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from gateway.common.unix_socket import SOCKET_NAME, connect
from tests.support.program import TURNPIKE, Program, running, turnpike

FAKE = (sys.executable, "-m", "tests.support.fake_engine_program")
PRICES = {"TURNPIKE_PRICES": json.dumps({"tiny": ["0.1", "0.4"], "org/tiny-2": ["0.1", "0.4"]})}
ACTOR = f"command-line:{pwd.getpwuid(os.getuid()).pw_name}"[:32]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """A gateway whose tenant `acme` has had an answer."""
    data_dir = tmp_path_factory.mktemp("gateway") / "data"
    with running(data_dir, program=FAKE, environment=PRICES) as program:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {program.key}"}
        answer = httpx.post(f"{program.url}/v1/chat/completions", headers=headers, json=body, timeout=30)
        assert answer.status_code == 200
        yield program
    assert not (data_dir / SOCKET_NAME).exists()


@pytest.fixture(scope="module")
def keys(program: Program) -> dict[str, str]:
    """An administrator's key of each role."""
    return {role: program.command("admin-key", "create", role, "--role", role) for role in ("admin", "viewer")}


def remote(program: Program, key: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command by the gateway's URL, on a machine with no data of its own."""
    environment = {**os.environ, "TURNPIKE_URL": program.url, "TURNPIKE_ADMIN_KEY": key, "XDG_DATA_HOME": "/nowhere"}
    return subprocess.run([TURNPIKE, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_a_draft_and_a_reconciliation_need_no_stop(program: Program) -> None:
    month = f"{datetime.now(UTC):%Y-%m}"
    deadline = time.monotonic() + 30
    while True:
        draft = json.loads(program.command("invoice", "draft", month, "--tenant", "acme"))
        if draft["events"]:
            break
        assert time.monotonic() < deadline, "the answer's usage does not arrive"
        time.sleep(0.2)
    assert (draft["tenant"], draft["events"]) == ("acme", 1)
    assert program.command("reconcile").splitlines()[-1] == "they agree"
    assert len(program.command("usage", "show", "--csv", "--by", "tenant").splitlines()) == 2
    (listed,) = json.loads(program.command("request", "list", "--tenant", "acme", "--json"))
    shown = json.loads(program.command("request", "show", listed["request_id"], "--json"))
    assert shown["cost_nanodollars"] == listed["cost_nanodollars"] > 0


def test_a_change_is_the_gateways_and_names_the_user(program: Program) -> None:
    program.command("tenant", "create", "beta", "--tier", "standard")
    entry = json.loads(program.command("audit", "list", "--limit", "1", "--json"))[0]
    assert (entry["action"], entry["resource"], entry["actor"]) == ("create", "tenant", ACTOR)
    assert entry["request_id"].startswith("req_")  # a change in the command's own process has none
    requests = [json.loads(line) for line in program.log.read_text().splitlines() if '"/admin/v1/tenants"' in line]
    assert {"POST"} <= {request["method"] for request in requests}


def test_a_price_of_a_model_that_is_not_served_is_a_warning(program: Program) -> None:
    command = ["price", "set", "absent", "--input", "1", "--output", "2", "--data-dir", str(program.data_dir)]
    done = subprocess.run([TURNPIKE, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("turnpike: warning: no model is served as absent")


def test_the_socket_is_the_owners(program: Program) -> None:
    assert stat.S_IMODE((program.data_dir / SOCKET_NAME).stat().st_mode) == 0o600


def test_by_url_with_a_key(program: Program, keys: dict[str, str]) -> None:
    done = remote(program, keys["admin"], "tenant", "create", "gamma", "--tier", "premium")
    assert (done.returncode, done.stdout) == (0, "created tenant gamma (premium)\n")
    entry = json.loads(remote(program, keys["viewer"], "audit", "list", "--json", "--limit", "1").stdout)[0]
    assert entry["actor"] == keys["admin"].split("-")[1]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("tenant", "suspend", "acme"), 1),
        (("key", "create", "--tenant", "acme"), 1),
        (("limit", "set", "--tenant", "acme", "--concurrent", "1"), 1),
        (("limit", "set", "--tenant", "acme"), 2),
    ],
)
def test_a_key_that_only_reads_changes_nothing(
    program: Program, keys: dict[str, str], command: tuple[str, ...], code: int
) -> None:
    before = program.command("audit", "list", "--json")
    done = remote(program, keys["viewer"], *command)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert done.stderr.startswith("turnpike: ")
    assert program.command("audit", "list", "--json") == before


def test_a_wrong_key_is_said_and_not_repeated(program: Program) -> None:
    done = remote(program, "tpa-wrong-key-that-is-secret", "tenant", "list")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert program.url in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("by_url", [False, True])
def test_a_command_that_is_killed_makes_one_change_or_none(
    program: Program, keys: dict[str, str], by_url: bool
) -> None:
    """At delays from its start to its end. Each change that was made has one entry."""
    environment = {**os.environ}
    where = ["--data-dir", str(program.data_dir)]
    if by_url:
        where, environment["TURNPIKE_URL"], environment["TURNPIKE_ADMIN_KEY"] = [], program.url, keys["admin"]
    begun = time.monotonic()
    program.command("tenant", "create", f"whole-{by_url}".lower(), "--tier", "standard")
    whole_s = time.monotonic() - begun
    prefix = f"killed-{by_url}-".lower()
    for number in range(8):
        command = [TURNPIKE, "tenant", "create", f"{prefix}{number}", "--tier", "standard", *where]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(whole_s * (number + 1) / 8)
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 30
    while True:  # the gateway may be at work for a command that was killed last
        tenants = json.loads(program.command("tenant", "list", "--json"))
        made = sorted(each["id"] for each in tenants if each["name"].startswith(prefix))
        audit = ("audit", "list", "--action", "create", "--resource", "tenant", "--limit", "0", "--json")
        entries = [each for each in json.loads(program.command(*audit)) if each["after"]["name"].startswith(prefix)]
        if sorted(each["resource_id"] for each in entries) == made:
            break
        assert time.monotonic() < deadline, (made, entries)
    assert program.command("audit", "verify") == "no audit entry was altered or removed"


def test_the_socket_of_a_killed_gateway_is_no_obstacle(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    command = [*FAKE, "serve", "--port", "0", "--data-dir", str(data_dir)]
    environment = {**os.environ, **PRICES}
    here = ("--data-dir", str(data_dir))
    for number in range(2):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 60
            while (connected := connect(data_dir / SOCKET_NAME, 5)) is None:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            connected.close()
            turnpike("tenant", "create", f"served-{number}", "--tier", "standard", *here)
        finally:
            process.kill()
            process.wait()
        assert (data_dir / SOCKET_NAME).exists()
        turnpike("tenant", "create", f"alone-{number}", "--tier", "standard", *here)
    entries = json.loads(turnpike("audit", "list", "--resource", "tenant", "--json", *here))
    assert [bool(each["request_id"]) for each in entries] == [False, True, False, True]
