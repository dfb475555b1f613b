"""The operations as commands use them."""

from collections.abc import Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, Self

from gateway.errors import OperatorError
from gateway.management.client.transport import Transport

PAGE = 200
"""Items of a page: the most that the admin API returns at once."""

_EMPTY: Mapping[str, Any] = MappingProxyType({})


class AdminClient:
    """Operations by their names, as `OpenAPI` lists them: `listTenants`, `createKey`. Members are JSON values; None
    among the members of a query or a body counts as absent. Every method raises `OperatorError`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def read(self, name: str, path: Mapping[str, str] = _EMPTY, query: Mapping[str, str | None] = _EMPTY) -> Any:
        """The answer of a read: a JSON value, or the text of a document."""
        return self._transport.read(name, path, _present(query))

    def change(self, name: str, path: Mapping[str, str] = _EMPTY, body: Mapping[str, Any] = _EMPTY) -> Any:
        """The answer of a change: a JSON value."""
        return self._transport.change(name, path, _present(body))

    def store(
        self,
        name: str,
        content: bytes,
        path: Mapping[str, str] = _EMPTY,
        query: Mapping[str, str | None] = _EMPTY,
    ) -> Any:
        """The answer to the bytes of a file: a JSON value."""
        return self._transport.store(name, path, _present(query), content)

    def items(
        self,
        name: str,
        path: Mapping[str, str] = _EMPTY,
        query: Mapping[str, str | None] = _EMPTY,
        *,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """The items of a list, at most `limit`. One page is in memory at a time."""
        size = PAGE if limit is None else min(PAGE, limit)
        return islice(self._pages(name, path, {**query, "limit": str(size)}), limit)

    def tenant_path(self, name: str) -> Mapping[str, str]:
        """The path of a tenant's operations.

        Raises:
            OperatorError: no tenant has that name.
        """
        return {"tenant_id": self.tenant_id(name)}

    def tenant_id(self, name: str) -> str:
        """
        Raises:
            OperatorError: no tenant has that name.
        """
        found = self.read("listTenants", query={"name": name})["data"]
        if not found:
            raise OperatorError(f"there is no tenant named {name}")
        return str(found[0]["id"])

    def tenant_query(self, name: str | None) -> Mapping[str, str]:
        """The filter of a list by a tenant; empty for None."""
        return {} if name is None else self.tenant_path(name)

    def _pages(self, name: str, path: Mapping[str, str], query: Mapping[str, str | None]) -> Iterator[Any]:
        cursor: str | None = None
        while True:
            page = self.read(name, path, {**query, "cursor": cursor})
            yield from page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                return


def _present(members: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}
