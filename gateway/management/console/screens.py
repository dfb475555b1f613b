"""Declarations of the console's pages: path, roles, content and forms, each declared once."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from starlette.types import ASGIApp

from gateway.http.errors import APIError
from gateway.management.console.admin_actions import AdminActions
from gateway.management.console.context import ConsoleContext
from gateway.management.console.forms import NO_FORM, Form
from gateway.management.console.sessions import Session
from gateway.management.console.users import AdministratorUser, TenantUser, User
from gateway.management.operations.operations import Operations
from gateway.management.operations.roles import Role
from gateway.tenancy.grants import KeyScope
from gateway.tenancy.records import Principal

H = TypeVar("H", bound=Callable[..., Awaitable[Any]])

PREFIX = "/console"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejected form. The page is rendered again with the error at its field, and with the input."""

    act: str
    error: APIError
    typed: Form

    @property
    def field(self) -> str:
        """The name of the form's field at fault, or nothing: `scopes[1]` is of `scopes`."""
        return (self.error.param or "").partition("[")[0].partition(".")[0]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One request of one user. `address`: the path below `PREFIX`; `path`: its parameters.

    `origin`: scheme and host as the browser names them. `form` is what was sent with a POST. `refused` is there when a
    page is shown again because a form was refused.
    """

    user: User
    operations: Operations = field(repr=False)
    request_id: str
    address: str = ""
    path: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    query: Form = NO_FORM
    form: Form = NO_FORM
    refused: Refusal | None = None
    origin: str = ""
    session: Session | None = field(default=None, repr=False)

    @property
    def actions(self) -> AdminActions:
        """The admin API's operations in this administrator's name.

        Raises:
            APIError: 403, it is a tenant.
        """
        if not isinstance(self.user, AdministratorUser):
            raise forbidden()
        return AdminActions(self.operations, self.user.administrator, self.request_id, self.form.get("once") or None)

    @property
    def tenant(self) -> Principal | None:
        """The tenant key of the user; None for an administrator."""
        return self.user.principal if isinstance(self.user, TenantUser) else None

    def saved(self, message: str) -> "Redirect":
        """The answer to a form that was done, for its own page to show `message`."""
        return Redirect(self.address, message)

    def may(self, operation: str) -> bool:
        """Whether the user may do an operation of the admin API. No tenant may."""
        if not isinstance(self.user, AdministratorUser):
            return False
        return self.operations.allows(operation, self.user.administrator)


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page: a template that extends `base.html`, and its values."""

    template: str
    values: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    status: int = 200


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a page alone, for `live.js` to put in the place of what is there."""

    template: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where to go after a form was done: a path below `PREFIX`. `said` is shown there once."""

    path: str
    said: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """Something else than a page: JSON for a script, or a file to keep under `filename`."""

    content: bytes
    media_type: str
    filename: str | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A file to keep that is sent while it is made: `parts` in order. An error after the first of them cuts it off."""

    parts: AsyncIterator[bytes]
    media_type: str
    filename: str


Answer = Page | Fragment | Redirect | Document | Download
Handler = Callable[[PageRequest], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A path of the console. `get` reads. `post` does what a form's `act` says, by name; where it raises an `APIError`
    of the user's making (400, 409, 422), the screen's `get` is shown again with `PageRequest.refused`.

    `allowed` are the roles that may come here, and `tenants` whether tenants' keys may; one that is for some scopes
    only must have `scope`. `section` is the group of the navigation it is listed in; None: another page leads to it.
    """

    path: str
    """Below `PREFIX`, as in `/tenants/{tenant_id}`; empty for the first page."""
    name: str
    """Unique; also marks where one is in the navigation."""
    title: str
    section: str | None = None
    allowed: frozenset[Role] = frozenset()
    tenants: bool = False
    scope: KeyScope = KeyScope.USAGE
    get: Handler
    post: Mapping[str, Handler] = field(default_factory=lambda: MappingProxyType({}))

    def admits(self, user: User) -> bool:
        if isinstance(user, TenantUser):
            return self.tenants and user.principal.may(self.scope)
        return user.administrator.role in self.allowed


class Screens:
    """The screens of a module. A decorator declares each at the handler that reads it, and its forms at theirs. A
    handler is a function of the context and the request."""

    def __init__(self) -> None:
        self._declared: dict[str, dict[str, Any]] = {}

    def get(
        self, path: str, name: str, title: str, allowed: frozenset[Role] = frozenset(), **more: Any
    ) -> Callable[[H], H]:
        """Declare a screen. `more`: other fields of `Screen`."""

        def declare(handler: H) -> H:
            said = {"path": path, "name": name, "title": title, "allowed": allowed, "get": handler, **more}
            self._declared.setdefault(name, {"post": {}}).update(said)
            return handler

        return declare

    def post(self, name: str, act: str) -> Callable[[H], H]:
        """Declare a form of the screen `name`."""

        def declare(handler: H) -> H:
            self._declared.setdefault(name, {"post": {}})["post"][act] = handler
            return handler

        return declare

    def bind(self, context: ConsoleContext) -> list[Screen]:
        """The screens with their handlers on a context."""
        return [
            Screen(
                **{
                    **said,
                    "get": partial(said["get"], context),
                    "post": {act: partial(handler, context) for act, handler in said["post"].items()},
                }
            )
            for said in self._declared.values()
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantProxy:
    """A path that proxies a page to the gateway's endpoint `app`. The request is handled as a request to `to` with the
    tenant's key, or with the key that an administrator's session was granted: scopes, limits and billing apply. POST
    only, from the console's own scripts: the header `x-csrf-token` carries the page's token."""

    path: str
    to: str
    app: ASGIApp


def forbidden() -> APIError:
    return APIError(403, "Your key does not allow this page.", code="role_not_allowed")
