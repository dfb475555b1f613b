"""Interface of an analytics store."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID, uuid4

MAX_INSERT_ROWS = 10_000
"""Limit of rows in one insert, so that it is one block: stored completely or not at all."""

Row = tuple[Any, ...]
Parameter = str | int | UUID | Sequence[str] | Sequence[int] | Sequence[UUID]
Parameters = Mapping[str, Parameter]
"""Values of `{name:Type}` in a statement. Instants are milliseconds: see `TimeRange`."""


class Analytics(Protocol):
    """ClickHouse over HTTP or in this process, with the same SQL. For one event loop and any number of tasks.

    The first call connects, and so does the first call after a failure. Each method raises `AnalyticsAway` if the store
    does not answer and `AnalyticsRefused` if it rejects the call.
    """

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        """Run a statement without a result."""

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """The rows of a SELECT. Instants are datetimes in UTC."""

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        """Store 1 to `MAX_INSERT_ROWS` rows. On return they are in the table and in its views.

        With a token, an insert of unknown outcome can be repeated with the same token and rows. A table or view with a
        `non_replicated_deduplication_window` remembers as many tokens and stores the rows once. One exception: a server
        that is killed after it has logged a token and before it has stored the rows takes them for stored. A table that
        must not lose rows therefore has no window (0, the default) and a key by which its engine merges copies. Without
        a token, rows are stored as often as they are inserted.
        """

    async def aclose(self) -> None:
        """Close connections, or release the folder. No call may follow or be in progress."""


def insert_settings(deduplication_token: str | None) -> dict[str, Any]:
    """Settings that make an insert behave as `Analytics.insert` states, whatever the server's defaults are."""
    return {
        "async_insert": 0,
        "insert_deduplicate": 1,
        # Without a token of its own, an insert of equal rows would count as a repetition.
        "insert_deduplication_token": deduplication_token or uuid4().hex,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
    }


def check_batch(rows: Sequence[Sequence[Any]]) -> None:
    """Check the size of a batch.

    Raises:
        ValueError: the batch would not be one block.
    """
    if not 1 <= len(rows) <= MAX_INSERT_ROWS:
        raise ValueError(f"an insert has 1 to {MAX_INSERT_ROWS} rows, not {len(rows)}")
