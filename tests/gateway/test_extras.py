"""A missing extra gives one error that names it, and the gateway serves without it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.analytics import AnalyticsAway, open_analytics
from gateway.config.settings import load_settings
from gateway.doctor import State
from gateway.doctor.clickhouse import clickhouse
from gateway.doctor.database import database
from gateway.doctor.finding import Check
from gateway.doctor.kafka import kafka
from gateway.doctor.redis import redis
from gateway.extras import MissingExtra, is_installed, require
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.process.open_limiter import open_limiter
from gateway.process.open_sessions import open_sessions
from gateway.process.serving import open_grpc
from gateway.tenancy import open_database
from tests.support.command_line import failure

pytestmark = pytest.mark.usefixtures("no_settings")

MODULES = ("aiohttp", "asyncpg", "chdb", "clickhouse_connect", "grpc", "kafka", "redis", "torch")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base installation, without extras."""
    for module in MODULES:
        monkeypatch.setitem(sys.modules, module, None)


def limiter() -> Any:
    return open_limiter(load_settings(redis_url="redis://127.0.0.1"), "replica")


def sessions() -> Any:
    return open_sessions(load_settings(sessions_redis_url="redis://127.0.0.1"))


def grpc_listener() -> Any:
    stages: Any = None
    return open_grpc(load_settings(grpc_listen="127.0.0.1:0"), stages, b"", demo=False)


@pytest.mark.parametrize(
    ("opening", "purpose", "extra"),
    [
        (lambda: open_database("postgresql+asyncpg://127.0.0.1/turnpike"), "PostgreSQL", "postgres"),
        (limiter, "redis_url", "redis"),
        (sessions, "sessions_redis_url", "redis"),
        (lambda: KafkaCluster.open("kafka://127.0.0.1"), "kafka_url", "kafka"),
        (lambda: open_analytics("http://127.0.0.1"), "a ClickHouse server", "clickhouse"),
        (grpc_listener, "grpc_listen", "grpc"),
    ],
)
def test_the_error_names_the_extra(opening: Callable[[], Any], purpose: str, extra: str) -> None:
    with pytest.raises(MissingExtra) as caught:
        opening()
    assert str(caught.value) == f"{purpose} needs the extra '{extra}': pip install 'turnpike[{extra}]'"


@pytest.mark.parametrize(
    "command",
    [
        ("distill", "--target", "smollm2", "--prompts", "prompts.jsonl", "--out", "small"),
        ("route", "fit", "--small", "a", "--large", "b", "--questions", "prompts.jsonl", "--out", "weights.json"),
    ],
)
def test_commands_that_train(command: tuple[str, ...]) -> None:
    assert failure(1, *command).endswith("needs the extra 'distill': pip install 'turnpike[distill]'\n")


def test_the_load_generator() -> None:
    message = failure(1, "bench", "--model", "m")
    assert message == "turnpike: turnpike bench needs the extra 'bench': pip install 'turnpike[bench]'\n"


def test_a_worker_with_grpc(tmp_path: Path) -> None:
    message = failure(1, "worker", "--grpc", "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert message == "turnpike: --grpc needs the extra 'grpc': pip install 'turnpike[grpc]'\n"


@pytest.mark.anyio
async def test_without_the_embedded_engine_the_store_is_away() -> None:
    """Away, not broken: the relay repeats its deliveries, and events stay in the journal."""
    analytics = open_analytics("chdb://memory")
    with pytest.raises(AnalyticsAway, match=r"turnpike\[embedded\]"):
        await analytics.query("SELECT 1")
    await analytics.aclose()


@pytest.mark.parametrize(
    ("check", "settings", "state"),
    [
        (kafka, {"kafka_url": "kafka://127.0.0.1"}, State.FAILURE),
        (redis, {"redis_url": "redis://127.0.0.1"}, State.FAILURE),
        (database, {"database_url": "postgresql://127.0.0.1/turnpike"}, State.FAILURE),
        (clickhouse, {"analytics_url": "http://127.0.0.1"}, State.FAILURE),
        (clickhouse, {}, State.WARNING),
    ],
)
def test_doctor_says_what_to_install(check: Check, settings: dict[str, str], state: State, tmp_path: Path) -> None:
    (found,) = check(load_settings(data_dir=tmp_path, **settings))
    assert found.state is state
    assert found.remedy.startswith("pip install 'turnpike[")


def test_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert is_installed("kafka")
    require("kafka", "kafka_url")
