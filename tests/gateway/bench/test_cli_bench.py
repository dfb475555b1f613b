"""`turnpike bench` from the command line."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.management.cli import app
from tests.gateway.bench.fake_server import Script, delta, finish, serving, sse, usage

ANSWER = [
    sse(delta(role="assistant", content=""), delta(content="a"), delta(content="b"), finish(), usage(5, 2), "[DONE]")
]


def bench(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *arguments])


def test_loads_one_after_another_and_two_runs_compared(tmp_path: Path) -> None:
    script = Script(ANSWER)
    with serving(script) as url:
        common = ("--url", url, "--model", "m", "--duration", "0.4", "--warmup", "0.1", "--slo-ttft-ms", "60000")
        result = bench(*common, "--rates", "50,100", "--json", str(tmp_path / "a"))
        assert result.exit_code == 0, result.output
        assert bench(*common, "--rate", "50", "--json", str(tmp_path / "b")).exit_code == 0
    assert "50 requests/s, 0.4 s measured: " in result.stdout
    assert "100 requests/s, 0.4 s measured: " in result.stdout
    assert "by the server's usage" in result.stdout
    assert "100.0% of all" in result.stdout
    first, second = json.loads((tmp_path / "a").read_text())["loads"]
    assert (first["load"], second["load"]) == ("50 requests/s", "100 requests/s")
    assert first["finished"] == first["requests"] > 0
    compared = bench("compare", str(tmp_path / "a"), str(tmp_path / "b"))
    assert compared.exit_code == 0
    assert [line.split("  ")[0] for line in compared.stdout.splitlines() if not line.startswith(" ")] == [
        "50 requests/s"
    ]
    assert "attainment" in compared.stdout


def test_the_same_seed_asks_the_same() -> None:
    asked = []
    for _ in range(2):
        script = Script(ANSWER)
        with serving(script) as url:
            bench("--url", url, "--model", "m", "--duration", "0.2", "--warmup", "0", "--rate", "100", "--seed", "9")
        asked.append(sorted(json.dumps(body) for body in script.bodies))
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0]) > 5


def test_a_closed_loop() -> None:
    with serving(Script(ANSWER)) as url:
        result = bench("--url", url, "--model", "m", "--duration", "0.2", "--warmup", "0", "--concurrency", "2")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("2 at a time")
    assert "sent late by" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--rate", "1"), "--model is required"),
        (("--model", "m", "--rate", "0"), "--rate"),
        (("--model", "m", "--rate", "1,x"), "--rate"),
        (("--model", "m", "--concurrency", "1.5"), "--concurrency"),
        (("--model", "m", "--concurrency", "1", "--rate", "1"), "exclude each other"),
        (("--model", "m", "--endpoint", "images"), "--endpoint"),
        (("--model", "m", "--prompt-tokens", "0"), "--prompt-tokens"),
        (("compare", "/nowhere", "/nowhere"), "/nowhere cannot be read"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], complaint: str) -> None:
    result = bench(*arguments)
    assert result.exit_code in (1, 2)
    assert complaint in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_server_that_is_not_there() -> None:
    result = bench("--url", "http://127.0.0.1:1/v1", "--model", "m")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("turnpike: ")
    assert "http://127.0.0.1:1/v1/chat/completions" in result.stderr
    assert result.stderr.count("\n") == 1


def test_files_that_are_something_else(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"format": 1, "loads": [{"load": "x"}]}')
    other = bench("compare", str(tmp_path / "a"), str(tmp_path / "a"))
    assert (other.exit_code, str(tmp_path / "a") in other.stderr) == (1, True)
    (tmp_path / "b").write_text('{"format": 0}')
    former = bench("compare", str(tmp_path / "b"), str(tmp_path / "b"))
    assert (former.exit_code, str(tmp_path / "b") in former.stderr) == (1, True)


def test_ctrl_c_prints_what_there_is() -> None:
    script = Script(ANSWER)
    with serving(script) as url:
        process = subprocess.Popen(
            [
                Path(sys.executable).with_name("turnpike"),
                "bench",
                "--url",
                url,
                "--model",
                "m",
                "--rate",
                "50",
                "--warmup",
                "0",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OPENAI_API_KEY": "k"},
        )
        while len(script.bodies) < 10 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.startswith("50 requests/s")
    assert err == ""
    assert set(script.keys) == {"Bearer k"}


def test_on_a_terminal_a_bar_goes_by() -> None:
    master, slave = pty.openpty()
    with serving(Script(ANSWER)) as url:
        load = ("--url", url, "--model", "m", "--rate", "20", "--duration", "0.5", "--warmup", "0")
        process = subprocess.Popen(
            [Path(sys.executable).with_name("turnpike"), "bench", *load],
            stdout=subprocess.PIPE,
            stderr=slave,
            text=True,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
        )
        os.close(slave)
        shown = "".join(_read(master))
        out, _ = process.communicate(timeout=60)
    os.close(master)
    assert process.returncode == 0
    assert "\x1b" in shown
    assert "0 not, 0 under way" in shown
    assert "\x1b" not in out


def _read(master: int) -> Iterator[str]:
    """Output to a terminal, until no process has its other side open."""
    while True:
        try:
            yield os.read(master, 65536).decode(errors="replace")
        except OSError:
            return
