"""A route: everything about it, declared once. The endpoint serves it, the OpenAPI document describes it, and a test
tries it with every role."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import getdoc
from types import MappingProxyType
from typing import Any, TypeVar

from gateway.management.operations.change import Change
from gateway.management.operations.context import AdminContext
from gateway.management.operations.roles import Administrator, Role
from gateway.management.operations.schema import Kind, Member, Record, Text

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])

PREFIX = "/admin/v1"

PATH_KINDS: Mapping[str, Text] = {
    "tenant_id": Text(36, 36, pattern="[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    "key_id": Text(12, 12, pattern="[a-z0-9]{12}"),
    "request_id": Text(255, 1, pattern="[A-Za-z0-9._:-]+"),
    "invoice_number": Text(64, 1, pattern="[A-Za-z0-9-]+"),
    "month": Text(7, 7, pattern="[0-9]{4}-(0[1-9]|1[0-2])"),
    "adapter_name": Text(63, 1, pattern="[a-z0-9][a-z0-9._-]*"),
    "adapter_version": Text(9, 1, pattern="[1-9][0-9]*"),
    "upload_id": Text(32, 32, pattern="[0-9a-f]{32}"),
    "adapter_file": Text(32, 1, pattern="adapter_config[.]json|adapter_model[.]safetensors"),
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


@dataclass(frozen=True, slots=True)
class Octets:
    """A body that is not JSON: at most `max_bytes` bytes as they are."""

    max_bytes: int


Read = Callable[[OperationInput], Awaitable[Any]]
Write = Callable[[Change, OperationInput], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """`read`, `write` or `store`, one of the three. `allowed` has no default: a route says who may."""

    name: str
    """The operation's id in the OpenAPI document."""
    about: str
    method: str
    path: str
    """Below `PREFIX`; names in braces are those of `PATH_KINDS`."""
    allowed: frozenset[Role]
    answer: Kind | Documents
    is_public: bool = False
    """Whether it needs no key."""
    status: int = 200
    query: Mapping[str, Member] = field(default_factory=lambda: MappingProxyType({}))
    body: Record[Any] | None = None
    octets: Octets | None = None
    """The body of a `store`."""
    read: Read | None = None
    write: Write | None = None
    store: Read | None = None
    """Takes the bytes of a file, as `body` of its input, outside any transaction. It has no audit entry: the write that
    uses the file has."""
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
        assert [self.read, self.write, self.store].count(None) == 2, self.name
        assert (self.store is None) == (self.octets is None), self.name
        assert (self.method == "GET") == (self.read is not None), f"{self.name}: GET reads, everything else writes"
        assert set(self.path_names) <= PATH_KINDS.keys(), self.name
        assert self.allowed, f"{self.name}: no role may call it"


Body = Record[Any] | Callable[[AdminContext], Record[Any]] | None
Query = Mapping[str, Member] | Callable[[AdminContext], Mapping[str, Member]]
"""A function of the context where it depends on the settings."""


class Routes:
    """The routes of a module, each declared by a decorator of its handler, a function of the context and the input (and
    of the change, for a write). `list_tenants` has the name `listTenants`; the first paragraph of its docstring is its
    `about`."""

    def __init__(self) -> None:
        self._declared: list[Callable[[AdminContext], Route]] = []

    def get(
        self, path: str, allowed: frozenset[Role], answer: Kind | Documents, *, query: Query = MappingProxyType({})
    ) -> Callable[[H], H]:
        """Declare a read."""
        return self._declare("read", method="GET", path=path, allowed=allowed, answer=answer, query=query)

    def write(
        self,
        method: str,
        path: str,
        allowed: frozenset[Role],
        answer: Kind | Documents,
        *,
        body: Body = None,
        status: int = 200,
        prepare: Callable[[AdminContext, OperationInput], Awaitable[Any]] | None = None,
    ) -> Callable[[H], H]:
        """Declare a write."""
        declared = {"method": method, "path": path, "allowed": allowed, "answer": answer, "status": status}
        return self._declare("write", prepare, body=body, **declared)

    def store(
        self, path: str, allowed: frozenset[Role], answer: Kind, octets: Octets, *, query: Query = MappingProxyType({})
    ) -> Callable[[H], H]:
        """Declare a write of a file's bytes."""
        declared: dict[str, Any] = {"path": path, "allowed": allowed, "answer": answer, "query": query}
        return self._declare("store", method="PUT", octets=octets, **declared)

    def bind(self, context: AdminContext) -> list[Route]:
        """The routes with their handlers on a context, as declared."""
        return [bind(context) for bind in self._declared]

    def _declare(
        self, does: str, prepare: Callable[..., Awaitable[Any]] | None = None, **declared: Any
    ) -> Callable[[H], H]:
        def declare(handler: H) -> H:
            def bind(context: AdminContext) -> Route:
                members = {name: each(context) if callable(each) else each for name, each in declared.items()}
                bound: dict[str, Any] = {does: partial(handler, context)}
                if prepare is not None:
                    bound["prepare"] = partial(prepare, context)
                return Route(**_described(handler), **members, **bound)

            self._declared.append(bind)
            return handler

        return declare


def _described(handler: Callable[..., Any]) -> dict[str, Any]:
    first, *others = handler.__name__.split("_")
    about = (getdoc(handler) or "").partition("\n\n")[0]
    return {"name": first + "".join(map(str.capitalize, others)), "about": " ".join(about.split())}
