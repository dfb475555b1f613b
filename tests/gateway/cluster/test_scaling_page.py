"""docs/scaling.md: its files are valid, and its commands exist."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from engine.workers.sources import members_of, parse_source
from gateway.cluster.cluster_file import load_cluster_file
from gateway.config.settings import load_settings
from gateway.management.cli import app

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_its_settings_are_valid(no_settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(no_settings)
    gateway, cluster, fleet = blocks("toml")
    Path("turnpike.toml").write_text(gateway, encoding="utf-8")
    settings = load_settings()
    assert settings.replicas.keys() == settings.models.keys()
    assert settings.worker_tls is not None
    Path("cluster.toml").write_text(cluster, encoding="utf-8")
    assert load_cluster_file(Path("cluster.toml")).workers["smollm2"].max == 2
    for sources in tomllib.loads(fleet)["replicas"].values():
        assert all(map(parse_source, sources))
    (stated,) = blocks("json")
    assert len(members_of(stated.encode())) == 1
    (values,) = blocks("yaml")
    chart = yaml.safe_load((ROOT / "deploy/helm/turnpike/values.yaml").read_text(encoding="utf-8"))
    assert yaml.safe_load(values)["workers"].keys() <= chart["workers"].keys()


def test_its_commands_exist() -> None:
    names = {command.name for command in app.registered_commands}
    used = set(re.findall(r"^turnpike (\w+)", "\n".join(blocks("sh")), re.MULTILINE))
    assert used == {"serve", "worker", "up"}
    assert used <= names
