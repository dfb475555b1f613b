"""The admin API as an ASGI application."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import orjson
import structlog
from starlette.datastructures import Headers
from starlette.routing import Route as PathRoute
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.made_body import document_endpoint
from gateway.http.middleware import BodyLimit, presented_key
from gateway.http.request_state import request_state
from gateway.management.http.endpoint import Resource, set_administrator
from gateway.management.http.openapi import openapi_document
from gateway.management.operations.admin_keys import AdminKeyStore
from gateway.management.operations.change import Changes
from gateway.management.operations.context import AdminContext
from gateway.management.operations.errors import not_found, unavailable
from gateway.management.operations.operations import Operations
from gateway.management.operations.resources import admin_routes
from gateway.management.operations.roles import READERS, Administrator
from gateway.management.operations.routes import PREFIX, OperationInput, Route
from gateway.management.operations.schema import Anything
from gateway.tenancy.authenticator import Authenticator
from gateway.tenancy.errors import StoreUnavailable
from gateway.tenancy.keys import ADMIN_PREFIX

MAX_BODY_BYTES = 64 * 1024
DOCUMENT_PATH = PREFIX + "/openapi.json"
"""The one path that needs no key: the document is the same for everyone."""


class AdminApp:
    """An ASGI application for HTTP below the `ErrorMiddleware`. Every path, known or not, needs an administrator's key,
    but a GET of `DOCUMENT_PATH`. `aclose` ends what reads keys."""

    def __init__(self, context: AdminContext) -> None:
        routes = with_description(admin_routes(context))
        self.routes = routes
        self.context = context
        self._keys = AdminKeyStore(context.database, context.pepper, now=context.now)
        self._authenticator: Authenticator[Administrator] = Authenticator(
            self._keys, context.pepper, prefix=ADMIN_PREFIX, now=context.now
        )
        changes = Changes(context.database, context.pepper, context.now)
        self.operations = Operations(routes, changes)
        """The same routes for the console: one lock for all changes of this process."""
        self._describe = document_endpoint(self.document)
        by_path = sorted(routes, key=lambda route: route.path)
        self._app = Router(
            [
                PathRoute(PREFIX + path, _bounded(tuple(same), changes))
                for path, same in groupby(by_path, key=lambda route: route.path)
            ],
            redirect_slashes=False,
            default=_unknown_path,
        )

    def document(self) -> dict[str, Any]:
        """The OpenAPI document of the routes."""
        return openapi_document(self.routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == DOCUMENT_PATH and scope["method"] in ("GET", "HEAD"):
            await self._describe(scope, receive, send)
            return
        await self.serve(await self.authenticate(presented_key(Headers(scope=scope))), scope, receive, send)

    async def serve(self, administrator: Administrator, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request of an administrator who is authenticated already."""
        request_state(scope).key_id = administrator.key_id
        structlog.contextvars.bind_contextvars(role=administrator.role.value)
        set_administrator(scope, administrator)
        await self._app(scope, receive, send)

    async def authenticate(self, presented: str) -> Administrator:
        """Who presents this key; that it was used is noted.

        Raises:
            InvalidKey: it is no administrator's key in use.
            APIError: 503, the database does not answer.
        """
        try:
            administrator = await self._authenticator.authenticate(presented)
            await self._keys.note_use(administrator.key_id)
        except StoreUnavailable:
            raise unavailable("The database does not answer.") from None
        return administrator

    async def in_use(self, key_id: str) -> Administrator:
        """The administrator whose key opened a session of the console.

        Raises:
            InvalidKey: it has been revoked.
            StoreUnavailable: the database does not answer, and this key was not seen lately.
        """
        return await self._authenticator.in_use(key_id)

    async def aclose(self) -> None:
        await self._authenticator.aclose()


def with_description(routes: Sequence[Route]) -> tuple[Route, ...]:
    """The routes, and the one of the document that describes them all. `AdminApp` answers a GET of it by itself."""

    async def describe(call: OperationInput) -> object:
        return orjson.Fragment(orjson.dumps(openapi_document(every)))

    description = Route(
        name="describe",
        about="This document.",
        method="GET",
        path=DOCUMENT_PATH.removeprefix(PREFIX),
        allowed=READERS,
        is_public=True,
        answer=Anything(),
        read=describe,
    )
    every = (*routes, description)
    return every


def _bounded(routes: Sequence[Route], changes: Changes) -> ASGIApp:
    """The endpoint of one path, with the bound of its bodies."""
    max_bytes = max([MAX_BODY_BYTES, *(route.octets.max_bytes for route in routes if route.octets is not None)])
    return BodyLimit(Resource(routes, changes), max_bytes)


async def _unknown_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_found()
