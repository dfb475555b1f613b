"""Requests of an administrator's page to the admin API: uploads of adapters, whose parts are no forms."""

import re
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.management.console.login import SessionAuth
from gateway.management.console.own_requests import secured_errors, session_of
from gateway.management.console.screens import PREFIX, forbidden
from gateway.management.console.users import AdministratorUser
from gateway.management.operations.roles import Administrator
from gateway.management.operations.routes import PREFIX as API_PREFIX

_PATHS = re.compile(re.escape(PREFIX) + r"(/tenants/[^/]+/adapter-uploads(?:/.+)?)")

Serve = Callable[[Administrator, Scope, Receive, Send], Awaitable[None]]
"""`AdminApp.serve`."""


class AdminProxy:
    """Serves paths of the admin API below the console's prefix to the session's administrator. Responses and errors are
    those of the API, which also checks the role."""

    def __init__(self, session_auth: SessionAuth, serve: Serve) -> None:
        self._session_auth = session_auth
        self._serve = serve

    def find(self, path: str) -> ASGIApp | None:
        """The application that serves the path; None: it is a page's."""
        matched = _PATHS.fullmatch(path)
        if matched is None:
            return None
        to = API_PREFIX + matched[1]

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            with secured_errors():
                user = await self._session_auth.user(await session_of(self._session_auth, scope))
                if not isinstance(user, AdministratorUser):
                    raise forbidden()
                proxied = {**scope, "path": to, "raw_path": quote(to).encode()}
                await self._serve(user.administrator, proxied, receive, send)

        return serve
