import asyncio
import shutil
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import app
from gateway.doctor import Finding, examine
from gateway.settings import Settings, load_settings
from gateway.tenancy import TenantStore, open_database
from gateway.tenancy.schema import upgrade
from tests.servers import free_port

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path / "data", models_dir=tmp_path / "models", port=free_port())


def finding(settings: Settings, what: str) -> Finding:
    (found,) = [each for each in examine(settings) if each.what == what]
    return found


def test_a_fresh_machine_can_serve_and_is_left_as_it_was(settings: Settings, tmp_path: Path) -> None:
    findings = examine(settings)
    assert {each.what for each in findings if each.state == "missing"} == set()
    assert finding(settings, "torch").state == "ok"
    assert finding(settings, "models").remedy.startswith("turnpike models fetch smollm2")
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_a_port_in_use(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", settings.port)):
        assert finding(settings, "port").state == "missing"
    assert finding(settings, "port").state == "ok"


def test_a_model_that_went_away(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, models={"a": tmp_path / "a.gguf"})
    assert finding(settings, "models").state == "missing"
    (tmp_path / "a.gguf").touch()
    assert finding(settings, "models").state == "ok"


def test_a_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert finding(load_settings(data_dir=tmp_path / "file"), "data directory").state == "missing"


def test_a_pepper_that_others_can_read(settings: Settings) -> None:
    (settings.data_dir / "secrets").mkdir(parents=True)
    (settings.data_dir / "secrets" / "pepper").write_text("p" * 64)
    (settings.data_dir / "secrets" / "pepper").chmod(0o644)
    found = finding(settings, "pepper")
    assert found.state == "missing"
    assert "chmod 600" in found.detail


def test_a_database_that_is_away(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, database_url="postgresql://u:s3cret@127.0.0.1:1/d")
    found = finding(settings, "database")
    assert found.state == "missing"
    assert "s3cret" not in repr(found)


async def _upgraded_with_a_key(url: str, pepper: bytes) -> None:
    await upgrade(url)
    database = open_database(url)
    store = TenantStore(database, pepper)
    await store.create_tenant("acme", "standard")
    await store.create_key("acme")
    await database.dispose()


def test_a_database_without_tables_and_keys_of_another_pepper(empty_database_url: str, tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, database_url=empty_database_url, key_pepper="p" * 32)
    asyncio.run(_touch(empty_database_url))
    assert "turnpike db upgrade" in finding(settings, "database").remedy
    asyncio.run(_upgraded_with_a_key(empty_database_url, b"p" * 32))
    assert finding(settings, "database").state == "ok"
    moved = load_settings(data_dir=tmp_path, database_url=empty_database_url, key_pepper="q" * 32)
    assert "1 keys were made under another pepper" in finding(moved, "database").detail


def test_the_classes_and_tenants_whose_tier_is_none_of_them(empty_database_url: str, tmp_path: Path) -> None:
    asyncio.run(_upgraded_with_a_key(empty_database_url, b"p" * 32))
    common = {"data_dir": tmp_path, "database_url": empty_database_url, "key_pepper": "p" * 32}
    settings = load_settings(**common)
    shown = finding(settings, "service classes").detail
    assert shown == "from the highest: premium (priority 0, 30% reserved), standard (priority 10, 0% reserved)"
    assert finding(settings, "database").state == "ok"
    settings = load_settings(**common, service_classes={"bulk": {"priority": 2}, "gold": {"priority": 1}})
    assert finding(settings, "service classes").detail.startswith("from the highest: gold (priority 1")
    found = finding(settings, "database")
    assert (found.state, "standard (1)" in found.detail) == ("absent", True)


async def _touch(url: str) -> None:
    """Make an SQLite file exist."""
    database = open_database(url)
    async with database.connect():
        pass
    await database.dispose()


def test_a_machine_without_a_compiler(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    found = finding(settings, "C++ compiler")
    assert (found.state, found.remedy.startswith("apt-get install")) == ("absent", True)


def test_the_command_prints_remedies_and_fails_when_something_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(app, ["doctor", "--data-dir", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert "missing   data directory:" in result.stdout
    assert "-> pass --data-dir DIR" in result.stdout
