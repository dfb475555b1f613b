"""Shared fixtures of the metering tests: a journal, a store, and a topic between them."""

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from gateway.analytics import Analytics
from gateway.metering.journal.journal import Journal
from gateway.metering.kafka_cluster import KafkaCluster
from gateway.metering.relay.kafka_destination import KafkaDestination
from tests.support.kafka_server import KafkaServer
from tests.support.usage_requests import SIGNER, analytics_at, journal_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage" / "journal.db"


@pytest.fixture
async def analytics(clickhouse_url: str, anyio_backend: str) -> AsyncIterator[Analytics]:
    """An empty store with its tables."""
    async with analytics_at(clickhouse_url) as store:
        yield store


@pytest.fixture
async def journal(tmp_path: Path, anyio_backend: str) -> AsyncIterator[Journal]:
    async with journal_at(tmp_path / "journal.db") as journal:
        yield journal


@pytest.fixture
def cluster(kafka_server: KafkaServer) -> KafkaCluster:
    return KafkaCluster.from_url(f"kafka://{kafka_server.bootstrap}")


@pytest.fixture
def topic(kafka_server: KafkaServer) -> str:
    name = f"usage-{uuid4().hex[:8]}"
    kafka_server.create_topic(name)
    return name


@pytest.fixture
def destination(cluster: KafkaCluster, topic: str) -> KafkaDestination:
    return KafkaDestination(cluster, topic, SIGNER)
