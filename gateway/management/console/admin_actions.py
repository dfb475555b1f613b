"""An administrator's reads and changes by the operations of the admin API."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from gateway.management.console.forms import Form
from gateway.management.operations.operations import Operations
from gateway.management.operations.roles import Administrator

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AdminActions:
    """Operations by their names (`listTenants`, `createKey` ...) for one request of one administrator. Every method
    raises `APIError` as the admin API would answer.

    `once` is what the form carries so that sending it twice does one thing.
    """

    operations: Operations
    administrator: Administrator
    request_id: str
    once: str | None = None

    def may(self, name: str) -> bool:
        """Whether the administrator's role allows the operation: a page leaves out forms that would be refused."""
        return self.operations.allows(name, self.administrator)

    async def read(self, name: str, path: Mapping[str, str] = _NONE, query: Mapping[str, str] = _NONE) -> Any:
        return await self.operations.read(name, self.administrator, path, query)

    async def change(self, name: str, path: Mapping[str, str] = _NONE, body: Mapping[str, Any] = _NONE) -> Any:
        return await self.operations.change(
            name, self.administrator, self.request_id, path, body, idempotency_key=self.once
        )

    async def submit(
        self, name: str, form: Form, path: Mapping[str, str] = _NONE, more: Mapping[str, Any] = _NONE
    ) -> Any:
        """A change whose body is the form's fields of the names that the operation takes, and `more`."""
        return await self.change(name, path, self.operations.body_of(name, form.texts()) | dict(more))
