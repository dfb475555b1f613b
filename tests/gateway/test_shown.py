"""`turnpike config`: what is in effect, where it comes from, and a file to start from."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from gateway.config.settings import Settings, load_settings
from tests.support.command_line import ok

pytestmark = pytest.mark.usefixtures("no_settings")


def test_only_what_is_set_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ok("config", "show") == ""
    monkeypatch.setenv("TURNPIKE_PORT", "9000")
    Path("turnpike.toml").write_text("max_running = 5\nport = 1\n")
    assert ok("config", "show").splitlines() == [
        "port = 9000  # TURNPIKE_PORT",
        f"max_running = 5  # {Path('turnpike.toml').absolute()}",
    ]


def test_the_file_of_the_data_folder_and_the_flag(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "turnpike.toml").write_text("log_level = 'debug'\n")
    assert ok("config", "show", "--data-dir", str(folder)).splitlines() == [
        f'data_dir = "{folder}"  # --data-dir',
        f'log_level = "debug"  # {folder / "turnpike.toml"}',
    ]


def test_what_is_in_effect_can_be_read_as_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_SERVICE_CLASSES", '{"gold": {"priority": 1}}')
    settings = load_settings()
    assert Settings(**tomllib.loads(ok("config", "show", "--effective"))) == settings
    listed = json.loads(ok("config", "show", "--effective", "--json"))
    assert list(listed) == list(Settings.model_fields)
    assert listed["service_classes"]["origin"] == "TURNPIKE_SERVICE_CLASSES"
    assert listed["redis_url"] == {"value": None, "origin": "default"}


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_KEY_PEPPER", "p" * 40)
    monkeypatch.setenv("TURNPIKE_DATABASE_URL", "postgresql://turnpike:hush-hush@db/turnpike")
    for options in ((), ("--effective",), ("--json",)):
        printed = ok("config", "show", *options)
        assert "hush-hush" not in printed
        assert "pppp" not in printed
        assert "@db/turnpike" in printed


def test_the_example_states_every_setting_with_its_default() -> None:
    text = ok("config", "example")
    assert tomllib.loads(text) == {}
    keys = re.findall(r"^#(\w+) =", text, re.MULTILINE)
    assert keys == list(Settings.model_fields)
    stated = "\n".join(re.sub("^#(?=\\w)", "", line) for line in text.splitlines() if not re.match(r"#\w+ =$", line))
    assert Settings(**tomllib.loads(stated)) == load_settings()
    assert "# Maximum draft tokens of one request per step." in text


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("command", [(), ("serve",), ("config", "show")])
def test_help_by_both_names(command: tuple[str, ...], option: str) -> None:
    assert ok(*command, option).startswith("Usage: ")


def test_the_version() -> None:
    assert re.fullmatch(r"turnpike \d+\.\d+\.\d+\n", ok("--version"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TURNPIKE_COMPLETE", f"source_{shell}")
    assert "_TURNPIKE_COMPLETE=complete_" in ok()
