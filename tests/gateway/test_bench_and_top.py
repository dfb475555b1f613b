"""`turnpike bench` and `turnpike top` on `turnpike serve`: real but for its engine."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.management.cli import app
from tests.support.program import Program, running


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    prices = {"TURNPIKE_PRICES": json.dumps({"tiny": ["0.1", "0.4"], "org/tiny-2": ["0.1", "0.4"]})}
    serve = (sys.executable, "-m", "tests.support.fake_engine_program")
    with running(tmp_path_factory.mktemp("gateway") / "data", program=serve, environment=prices) as program:
        yield program


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_load_on_this_gateway(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", program.key)
    load = ("--url", f"{program.url}/v1", "--model", "tiny", "--endpoint", endpoint, "--rate", "10", "--duration", "1")
    lengths = ("--warmup", "0", "--prompt-tokens", "2/0", "--output-tokens", "64/0")
    result = CliRunner().invoke(app, ["bench", *load, *lengths, "--json", str(tmp_path / "figures")])
    assert result.exit_code == 0, result.output
    (figures,) = json.loads((tmp_path / "figures").read_text())["loads"]
    assert figures["finished"] == figures["requests"] > 0
    assert (figures["tokens_by"], figures["mean_output_tokens"]) == ("usage", 20)
    assert figures["tpot_ms"]["n"] == figures["finished"]


def test_a_frame_of_our_own_gateway_has_all_of_the_first_lines(program: Program) -> None:
    result = CliRunner().invoke(app, ["top", "--once", "--interval", "0.1", "--url", program.url])
    head, requests, usage, process = result.stdout.splitlines()[:4]
    assert "ready" in head
    assert requests.startswith("requests/s   0 answered  0 refused  0 turned away  0 client gone  0 failed")
    assert "events behind (" in usage
    assert "-" not in usage + process
    assert "journal ok  limits ok  0 holds" in usage
