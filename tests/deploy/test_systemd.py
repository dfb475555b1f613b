"""The unit of systemd: it is one, and it fits the program that it starts."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.config.setting_sources import ENV_PREFIX
from gateway.config.settings import Settings
from gateway.management.cli import app
from tests.deploy.dockerfile import ROOT

UNIT = ROOT / "deploy" / "systemd" / "turnpike.service"
TEXT = UNIT.read_text(encoding="utf-8")


def stated(key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", TEXT, re.MULTILINE)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd: apt-get install systemd")
def test_systemd_takes_it(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(TEXT.replace("/opt/turnpike/bin/turnpike", "/bin/true"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


def test_it_starts_a_command_that_there_is() -> None:
    (command,) = stated("ExecStart")
    program, *arguments = shlex.split(command)
    assert program.endswith("/bin/turnpike")
    assert CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


def test_it_sets_settings_in_folders_that_it_makes() -> None:
    values = dict(each.split("=", 1) for each in stated("Environment"))
    fields = {name.removeprefix(ENV_PREFIX).lower() for name in values}
    assert fields <= set(Settings.model_fields)
    assert values["TURNPIKE_DATA_DIR"] == f"/var/lib/{stated('StateDirectory')[0]}"
    assert values["TURNPIKE_MODELS_DIR"].startswith(f"/var/cache/{stated('CacheDirectory')[0]}/")


def test_a_drain_is_not_cut_off() -> None:
    default_s = Settings.model_fields["shutdown_deadline_s"].default
    assert int(stated("TimeoutStopSec")[0]) >= default_s + 10
