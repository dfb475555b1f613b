"""The usage store of an installation without the embedded engine."""

from collections.abc import Sequence
from typing import Any

from gateway.analytics.errors import AnalyticsAway
from gateway.analytics.store import Parameters, Row
from gateway.extras import install

ABSENT = (
    f"the embedded usage store needs the extra 'embedded': {install('embedded')}, or set analytics_url to a ClickHouse "
    "server; until then usage waits in the journal"
)


class AbsentClickHouse:
    """`Analytics` that is always away: events stay in the journal, and reach the store once there is one."""

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        """Raises: AnalyticsAway."""
        raise AnalyticsAway(ABSENT)

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """Raises: AnalyticsAway."""
        raise AnalyticsAway(ABSENT)

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        """Raises: AnalyticsAway."""
        raise AnalyticsAway(ABSENT)

    async def aclose(self) -> None:
        """As in `Analytics`."""
