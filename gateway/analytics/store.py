"""What a store of usage can do, whichever it is: the seam between SQL and the way to it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from uuid import UUID, uuid4

MAX_INSERT_ROWS = 10_000
"""Of one insert, which is then one block: all of it is stored, or nothing."""

Row = tuple[Any, ...]
Parameter = str | int | UUID | Sequence[str] | Sequence[int] | Sequence[UUID]
Parameters = Mapping[str, Parameter]
"""For `{name:Type}` in a statement. Instants go as milliseconds: see `TimeRange`."""


class Analytics(Protocol):
    """ClickHouse over HTTP or in this process: the same SQL. To be used on one event loop, by any number of tasks.

    Nothing connects before the first call, and after a failure the next call connects anew. Each method raises
    `AnalyticsAway` where the store does not answer and `AnalyticsRefused` where it says no.
    """

    async def command(self, sql: str, parameters: Parameters | None = None) -> None:
        """A statement without an answer."""

    async def query(self, sql: str, parameters: Parameters | None = None) -> list[Row]:
        """The rows of a SELECT. Instants are datetimes in UTC."""

    async def insert(
        self,
        table: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
        deduplication_token: str | None = None,
    ) -> None:
        """Store 1 to `MAX_INSERT_ROWS` rows; when this returns they are there, in the table and in its views.

        With a token, an insert of unknown outcome is repeated with the same token and the same rows: they are then
        stored once, in the table and in each view, whatever the first attempt had reached. A token is remembered for
        as many inserts as the table's `non_replicated_deduplication_window` says. Without one, rows are stored as
        often as they are inserted.
        """

    async def aclose(self) -> None:
        """Let go of connections or of the folder. No call may follow or be under way."""


def insert_settings(deduplication_token: str | None) -> dict[str, Any]:
    """Settings of an insert that say what `Analytics.insert` promises, whatever the server's defaults are."""
    return {
        "async_insert": 0,
        "insert_deduplicate": 1,
        # Without a token, equal rows would be taken for repeated ones.
        "insert_deduplication_token": deduplication_token or uuid4().hex,
        "deduplicate_blocks_in_dependent_materialized_views": 1,
    }


def check_batch(rows: Sequence[Sequence[Any]]) -> None:
    """
    Raises:
        ValueError: a batch that could not be one block.
    """
    if not 1 <= len(rows) <= MAX_INSERT_ROWS:
        raise ValueError(f"an insert has 1 to {MAX_INSERT_ROWS} rows, not {len(rows)}")
