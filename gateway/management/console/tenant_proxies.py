"""Requests of a tenant's page to the gateway's own endpoints."""

from collections.abc import Sequence

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.access import CHAT, require_scope
from gateway.http.errors import APIError
from gateway.http.request_state import request_state
from gateway.management.console.login import SessionAuth
from gateway.management.console.own_requests import secured_errors, session_of
from gateway.management.console.screens import PREFIX, TenantProxy
from gateway.management.console.sessions import Session
from gateway.management.console.users import TenantUser
from gateway.management.operations.roles import ADMINS
from gateway.tenancy.records import Principal

GRANT_HEADER = "x-key-grant"
"""Of an administrator's request: `ConsoleSessions.key_grant`."""


class TenantProxies:
    """Finds the proxy of a path. Responses are the endpoint's, errors the API's envelopes."""

    def __init__(self, session_auth: SessionAuth, proxies: Sequence[TenantProxy]) -> None:
        self._session_auth = session_auth
        self._proxies = {PREFIX + proxy.path: proxy for proxy in proxies}

    def find(self, path: str) -> ASGIApp | None:
        proxy = self._proxies.get(path)
        if proxy is None:
            return None

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            with secured_errors():
                await self._enter(proxy, scope)
                await proxy.app({**scope, "path": proxy.to, "raw_path": proxy.to.encode()}, receive, send)

        return serve

    async def _enter(self, proxy: TenantProxy, scope: Scope) -> None:
        """
        Raises:
            InvalidKey: there is no session, or the key of its requests is not in use.
            APIError: 403, not from our own page, or the key is not for this; 405.
        """
        if scope["method"] != "POST":
            raise APIError(405, "Method not allowed.", code="method_not_allowed")
        session = await session_of(self._session_auth, scope)
        principal = await self._principal(session, Headers(scope=scope))
        require_scope(principal, CHAT)
        request_state(scope).authenticate(principal)
        structlog.contextvars.bind_contextvars(tenant=principal.tenant_name)

    async def _principal(self, session: Session, headers: Headers) -> Principal:
        """The tenant of the session; an administrator's is the one of the key that the session was granted."""
        user = await self._session_auth.user(session)
        if isinstance(user, TenantUser):
            return user.principal
        key_id = self._session_auth.sessions.granted_key(session, headers.get(GRANT_HEADER, ""))
        if key_id is None or user.administrator.role not in ADMINS:
            raise APIError(403, "Choose a tenant on the playground first.", code="role_not_allowed")
        return await self._session_auth.tenant(key_id)
