from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.analytics import Analytics, migrate, open_analytics


@pytest.fixture
def embedded_url(tmp_path: Path) -> str:
    """A folder that is not there yet. A process has one embedded store at a time: tests close theirs."""
    return f"chdb://{tmp_path / 'analytics'}"


@pytest.fixture(params=["embedded", "server"])
def analytics_url(request: pytest.FixtureRequest) -> str:
    """Each of the stores, empty."""
    url: str = request.getfixturevalue("embedded_url" if request.param == "embedded" else "clickhouse_url")
    return url


@pytest.fixture
async def empty_analytics(analytics_url: str, anyio_backend: str) -> AsyncIterator[Analytics]:
    """Each of the stores, without tables."""
    store = open_analytics(analytics_url)
    yield store
    await store.aclose()


@pytest.fixture
async def analytics(empty_analytics: Analytics) -> Analytics:
    """Each of the stores, with its tables."""
    await migrate(empty_analytics)
    return empty_analytics
