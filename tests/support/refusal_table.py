"""A store for refusals in memory."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gateway.analytics import AnalyticsAway
from gateway.analytics.absent import AbsentClickHouse
from gateway.analytics.refusals import REFUSALS_TABLE, StoredRefusal
from gateway.analytics.store import check_batch


class RefusalTable(AbsentClickHouse):
    """Keeps each row once, by its id, as the store's table does. `failures`: raised by the next inserts, in order.
    `loses_answers`: an insert that fails has stored its rows."""

    def __init__(self) -> None:
        self.failures: list[Exception] = []
        self.loses_answers = False
        self.inserts: list[int] = []
        """Rows of each insert."""
        self._rows: dict[Any, StoredRefusal] = {}

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        assert table == REFUSALS_TABLE
        check_batch(rows)
        self.inserts.append(len(rows))
        failure = self.failures.pop(0) if self.failures else None
        if failure is None or self.loses_answers:
            for row in rows:
                stored = StoredRefusal(**dict(zip(columns, row, strict=True)))
                assert self._rows.setdefault(stored.refusal_id, stored) == stored, "copies differ"
        if failure is not None:
            raise failure

    @property
    def rows(self) -> list[StoredRefusal]:
        return list(self._rows.values())

    @property
    def requests(self) -> int:
        return sum(row.requests for row in self._rows.values())

    def by_code(self) -> dict[tuple[str, str], int]:
        """Requests by tenant and code."""
        counts: Counter[tuple[str, str]] = Counter()
        for row in self._rows.values():
            counts[row.tenant_id, row.code] += row.requests
        return dict(counts)


AWAY = AnalyticsAway("ClickHouse does not answer")
