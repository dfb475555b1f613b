"""Lists by pages, each from where the last one ended.

A cursor holds the sort key of the last item of a page, so that a list can grow or shrink between two pages and no item
is skipped or told twice. It is signed for its list and its filters: clients pass it on and cannot make one.
"""

import base64
import binascii
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import orjson
from sqlalchemy import Select, literal, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import InstrumentedAttribute

from gateway.http.errors import invalid
from gateway.management.operations.schema import Integer, Kind, ListOf, Member, Record, Text, answer, nullable, optional
from gateway.tenancy.tables import UtcDateTime

MAX_PAGE = 200
DEFAULT_PAGE = 50
_MAX_CURSOR_CHARS = 1024
_TAG_BYTES = 16

PAGE_QUERY: Mapping[str, Member] = MappingProxyType(
    {
        "limit": optional(Integer(1, MAX_PAGE), f"Maximum number of items. Default: {DEFAULT_PAGE}."),
        "cursor": optional(Text(_MAX_CURSOR_CHARS), "`next_cursor` of the previous page, with the same filters."),
    }
)


def page_of(name: str, item: Kind) -> Record[dict[str, Any]]:
    """The answer of a list."""
    return answer(
        name,
        {
            "data": ListOf(item, MAX_PAGE),
            "next_cursor": nullable(Text(_MAX_CURSOR_CHARS), "Cursor of the next page; null on the last page."),
        },
    )


class Cursors:
    """Signs and checks them."""

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.digest(pepper, b"turnpike cursors", "sha256")

    def write(self, listing: str, position: Sequence[Any]) -> str:
        body = orjson.dumps([each.isoformat() if isinstance(each, datetime) else each for each in position])
        return base64.urlsafe_b64encode(self._tag(listing, body) + body).rstrip(b"=").decode()

    def read(self, listing: str, cursor: str) -> list[Any]:
        """
        Raises:
            APIError: 400 naming `cursor`, it is none of this listing's.
        """
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        tag, body = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(listing, body)):
            raise invalid("cursor", "cursor must be the next_cursor of a page of this list, with the same filters.")
        position: list[Any] = orjson.loads(body)
        return position

    def _tag(self, listing: str, body: bytes) -> bytes:
        return hmac.digest(self._key, listing.encode() + b"\0" + body, "sha256")[:_TAG_BYTES]


def described(name: str, query: Mapping[str, Any]) -> str:
    """A list with its filters, as cursors are signed for it."""
    filters = {name: value for name, value in query.items() if name not in PAGE_QUERY and value is not None}
    return f"{name} {orjson.dumps(filters, option=orjson.OPT_SORT_KEYS).decode()}"


@dataclass(frozen=True, slots=True)
class Listing:
    """How a list is sorted: by columns that together are unique."""

    name: str
    columns: tuple[InstrumentedAttribute[Any], ...]
    descending: bool = False

    async def page(
        self,
        connection: AsyncConnection,
        statement: Select[*tuple[Any, ...]],
        query: Mapping[str, Any],
        cursors: Cursors,
        wire: Callable[[Any], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """The page that `query` asks for of what `statement` selects, each row as `wire` says. The row must have the
        sort columns under their own names."""
        size = query["limit"] or DEFAULT_PAGE
        listing = described(self.name, query)
        if query["cursor"] is not None:
            statement = statement.where(self._after(cursors.read(listing, query["cursor"])))
        order = [column.desc() if self.descending else column.asc() for column in self.columns]
        rows = (await connection.execute(statement.order_by(*order).limit(size + 1))).all()
        more = len(rows) > size
        last = [getattr(rows[size - 1], column.key) for column in self.columns] if more else []
        return {
            "data": [wire(row) for row in rows[:size]],
            "next_cursor": cursors.write(listing, last) if more else None,
        }

    def _after(self, position: Sequence[Any]) -> Any:
        pairs = zip(self.columns, position, strict=True)
        values = [literal(_typed(column, value), column.type) for column, value in pairs]
        here, there = tuple_(*self.columns), tuple_(*values)
        return here < there if self.descending else here > there


def _typed(column: InstrumentedAttribute[Any], value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(column.type, UtcDateTime) else value
