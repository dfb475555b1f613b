import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.config.settings import load_settings
from gateway.doctor import State, examine
from gateway.management.cli import app
from tests.support.servers import free_port


def test_a_fresh_machine_can_serve_and_is_left_as_it_was(no_settings: Path, tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path / "data", models_dir=tmp_path / "models", port=free_port())
    findings = examine(settings)
    assert {each.what for each in findings if each.state is State.FAILURE} == set()
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]
    assert len({each.what for each in findings}) == len(findings)
    assert all(each.remedy for each in findings if each.state is not State.OK)


def test_failures_have_remedy_and_exit_code(no_settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_PORT", str(free_port()))
    (tmp_path / "file").touch()
    arguments = ["doctor", "--data-dir", str(tmp_path / "file")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "failure   data directory:" in result.stdout
    assert "-> pass --data-dir DIR" in result.stdout
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 1
    stated = {each["what"]: each for each in json.loads(result.stdout)}
    assert (stated["data directory"]["state"], stated["torch"]["state"]) == ("failure", "ok")
    assert CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path / "data")]).exit_code == 0
