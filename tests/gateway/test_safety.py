"""Settings with which the program refuses to start, each in one line that names it, and settings that it warns of."""

import os
import re
import secrets
import subprocess
from pathlib import Path

import pytest

from gateway.config.safety import UnsafeSettings, is_placeholder, readable_secrets, refuse_unsafe, stores_without_tls
from gateway.config.setting_sources import SettingsError
from gateway.config.settings import load_settings
from tests.support.program import TURNPIKE
from tests.support.servers import free_port

GOOD = b"1b5f0c6e2a9d4837b0c1f2e3d4a59687f0e1d2c3b4a5968778695a4b3c2d1e0f"
PASSWORD = "hunter2hunter2"
HALF_AND_HALF = '{"a": {"priority": 1, "reserved_fraction": 0.5}, "b": {"priority": 2, "reserved_fraction": 0.5}}'

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.mark.parametrize(
    ("address", "pepper", "demo", "complaint"),
    [
        ("127.0.0.1", b"change-me" * 8, True, None),
        ("::1", b"change-me" * 8, True, None),
        ("0.0.0.0", GOOD, False, None),
        ("10.1.2.3", GOOD, False, None),
        ("0.0.0.0", GOOD, True, "--demo"),
        ("::", GOOD, True, "--demo"),
        ("192.168.0.7", GOOD, True, "--demo"),
        ("fe80::1%eth0", GOOD, True, "--demo"),
        ("0.0.0.0", b"change-me-change-me-change-me-change-me", False, "key_pepper"),
        ("0.0.0.0", b"please-REPLACE-this-with-a-long-random-text", False, "key_pepper"),
        ("::", b"0" * 64, False, "key_pepper"),
        ("10.1.2.3", b"abababababababababababababababababab", False, "key_pepper"),
    ],
)
def test_unsafe_network_access_is_refused(address: str, pepper: bytes, demo: bool, complaint: str | None) -> None:
    if complaint is None:
        refuse_unsafe(address, pepper, demo=demo)
        return
    with pytest.raises(UnsafeSettings, match=complaint) as refusal:
        refuse_unsafe(address, pepper, demo=demo)
    assert address in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert pepper.decode() not in str(refusal.value)


def test_no_generated_pepper_is_taken_for_a_placeholder() -> None:
    for _ in range(1000):
        assert not is_placeholder(secrets.token_hex(32).encode())
        assert not is_placeholder(secrets.token_hex(16).encode())
        assert not is_placeholder(secrets.token_urlsafe(32).encode())


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"TURNPIKE_PROT": "8081"}, "TURNPIKE_PROT .*port"),
        ({"turnpike_prot": "8081"}, "turnpike_prot "),
        ({"TURNPIKE_ZZZZ": "1"}, "TURNPIKE_ZZZZ "),
        ({"TURNPIKE_PORT": "tcp://10.0.0.1:8080"}, "port: "),
        ({"TURNPIKE_MODELS": "{nonsense"}, "models: .*JSON"),
        ({"TURNPIKE_MODELS": "[]"}, "models: "),
        ({"TURNPIKE_PRICES": '{"a": ["-1", "2"]}'}, "prices: "),
        ({"TURNPIKE_KEY_PEPPER": "x" * 31}, "key_pepper: .*32"),
        ({"TURNPIKE_SPECULATION": "draft", "TURNPIKE_MODELS": '{"a": "/a"}'}, "speculation: .*small_models"),
        ({"TURNPIKE_SMALL_MODELS": '{"a": "b"}'}, "small_models: .*'a'"),
        ({"TURNPIKE_SERVICE_CLASSES": HALF_AND_HALF}, "service_classes: reserved_fraction adds up to 1;"),
        ({"TURNPIKE_DRAIN_DELAY_S": "30"}, "drain_delay_s: .*shutdown_deadline_s.* 20"),
        ({"TURNPIKE_DATABASE_URL": f"mysql://u:{PASSWORD}@db/x"}, "database_url: "),
        ({"TURNPIKE_REDIS_URL": f"http://u:{PASSWORD}@cache"}, "redis_url: "),
        ({"TURNPIKE_KAFKA_URL": f"kafka://u:{PASSWORD}@b/{PASSWORD}"}, "kafka_url: "),
    ],
)
def test_bad_settings_are_one_line(variables: dict[str, str], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError, match=complaint) as refusal:
        load_settings()
    assert "\n" not in str(refusal.value)
    assert PASSWORD not in str(refusal.value)


def test_what_clients_have_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNPIKE_KEY", "tp-abc")
    load_settings()


@pytest.mark.parametrize(
    ("setting", "url", "is_told"),
    [
        ("database_url", f"postgresql://u:{PASSWORD}@db.internal/x", True),
        ("database_url", f"postgresql://u:{PASSWORD}@db.internal/x?sslmode=prefer", True),
        ("database_url", f"postgresql://u:{PASSWORD}@db.internal/x?sslmode=require", False),
        ("database_url", f"postgresql://u:{PASSWORD}@db.internal/x?sslmode=verify-full", False),
        ("database_url", "postgresql://u@127.0.0.1:5432/x", False),
        ("database_url", "postgresql://u@[::1]:5432/x", False),
        ("database_url", "postgresql:///x?host=/run/postgresql", False),
        ("database_url", "sqlite:////tmp/x.db", False),
        ("redis_url", f"redis://:{PASSWORD}@cache:6379/0", True),
        ("redis_url", f"rediss://:{PASSWORD}@cache:6379/0", False),
        ("redis_url", "redis://localhost", False),
        ("redis_url", "unix:///run/redis.sock", False),
        ("kafka_url", "kafka://one:9092,127.0.0.1:9092", True),
        ("kafka_url", f"kafkas://u:{PASSWORD}@one:9093", False),
        ("analytics_url", f"http://u:{PASSWORD}@clickhouse:8123/x", True),
        ("analytics_url", f"https://u:{PASSWORD}@clickhouse/x", False),
    ],
)
def test_what_others_can_read_on_the_way_is_told(setting: str, url: str, is_told: bool) -> None:
    assert stores_without_tls(load_settings(**{setting: url})) == [setting] * is_told


@pytest.mark.parametrize(
    ("content", "mode", "is_told"),
    [
        (f'key_pepper = "{"x" * 32}"', 0o644, True),
        (f'database_url = "postgresql://u:{PASSWORD}@127.0.0.1/x"', 0o644, True),
        (f'key_pepper = "{"x" * 32}"', 0o640, False),
        ('database_url = "postgresql://u@127.0.0.1/x"', 0o644, False),
        ("port = 8081", 0o644, False),
    ],
)
def test_a_secret_that_every_user_may_read_is_told(content: str, mode: int, is_told: bool) -> None:
    file = Path("turnpike.toml")
    file.write_text(content)
    file.chmod(mode)
    assert readable_secrets(load_settings()) == [file.resolve()] * is_told


@pytest.mark.parametrize(
    ("arguments", "variables", "complaint"),
    [
        ((), {"TURNPIKE_HSOT": "0.0.0.0"}, "TURNPIKE_HSOT .*host"),
        (("--model", "unpriced=."), {}, "turnpike price set unpriced"),
    ],
)
def test_the_program_says_so_before_it_loads_anything(
    arguments: tuple[str, ...], variables: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    """Before it looks into the model, which is none."""
    command = [TURNPIKE, "serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data"), *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert re.match(f"turnpike: .*{complaint}", line)
