"""A route: everything about it, declared once. The endpoint serves it, the OpenAPI document describes it, and a test
tries it with every role."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from gateway.management.operations.change import Change
from gateway.management.operations.roles import Administrator, Role
from gateway.management.operations.schema import Kind, Member, Record, Text

PREFIX = "/admin/v1"

PATH_KINDS: Mapping[str, Text] = {
    "tenant_id": Text(36, 36, pattern="[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "key_id": Text(12, 12, pattern="[a-z0-9]{12}"),
    "request_id": Text(255, 1, pattern="[A-Za-z0-9._:-]+"),
    "invoice_number": Text(64, 1, pattern="[A-Za-z0-9-]+"),
    "month": Text(7, 7, pattern="[0-9]{4}-(0[1-9]|1[0-2])"),
}
"""Values of path parameters. Any other value is answered 404."""


@dataclass(frozen=True, slots=True)
class OperationInput:
    """A request that has been read: `path` and `query` by name (a query parameter that is absent is None), `body` as
    its record made it. `prepared` is what the route's `prepare` found out."""

    administrator: Administrator
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    prepared: Any = None


@dataclass(frozen=True, slots=True)
class Document:
    """An answer that is not JSON, in one of several media types."""

    content: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Documents:
    """The media types of a route in addition to JSON, for which its handler returns a `Document`."""

    json: Kind
    media_types: tuple[str, ...]


Read = Callable[[OperationInput], Awaitable[Any]]
Write = Callable[[Change, OperationInput], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`read` or `write`, one of the two. `allowed` has no default: a route says who may."""

    name: str
    """The operation's id in the OpenAPI document."""
    about: str
    method: str
    path: str
    """Below `PREFIX`; names in braces are those of `PATH_KINDS`."""
    allowed: frozenset[Role]
    answer: Kind | Documents
    status: int = 200
    query: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    body: Record[Any] | None = None
    read: Read | None = None
    write: Write | None = None
    prepare: Read | None = None
    """Reads the slow inputs of a write before its transaction begins, so that other writes do not wait for them."""

    @property
    def path_names(self) -> tuple[str, ...]:
        return tuple(re.findall(r"{(\w+)}", self.path))

    @property
    def json_answer(self) -> Kind:
        return self.answer.json if isinstance(self.answer, Documents) else self.answer

    def check(self) -> None:
        """A route that declares itself wrongly is a bug that no request should have to find."""
        assert (self.read is None) != (self.write is None), self.name
        assert (self.method == "GET") == (self.read is not None), f"{self.name}: GET reads, everything else writes"
        assert set(self.path_names) <= PATH_KINDS.keys(), self.name
        assert self.allowed, f"{self.name}: nobody may"
