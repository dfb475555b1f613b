"""Requests of a tenant's page to the gateway's own endpoints."""

from collections.abc import Sequence

import structlog
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.access import require_scope
from gateway.http.errors import APIError, as_api_error
from gateway.http.request_state import request_state
from gateway.management.console.headers import NEVER_STORED, SECURITY, is_own
from gateway.management.console.login import SESSION_COOKIE, SessionAuth
from gateway.management.console.screens import PREFIX, TenantProxy
from gateway.management.console.users import TenantUser
from gateway.tenancy.errors import InvalidKey

CSRF_HEADER = "x-csrf-token"


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
            try:
                await self._enter(proxy, scope)
                await proxy.app({**scope, "path": proxy.to, "raw_path": proxy.to.encode()}, receive, send)
            except Exception as error:
                answer = as_api_error(error)
                if answer is None:
                    raise
                answer.headers |= {**SECURITY, **NEVER_STORED}
                raise answer from error

        return serve

    async def _enter(self, proxy: TenantProxy, scope: Scope) -> None:
        """
        Raises:
            InvalidKey: there is no session of a tenant's key in use.
            APIError: 403, not from our own page, or the key is not for this; 405.
        """
        if scope["method"] != "POST":
            raise APIError(405, "Method not allowed.", code="method_not_allowed")
        headers = Headers(scope=scope)
        session = await self._session_auth.session(Request(scope).cookies.get(SESSION_COOKIE, ""))
        if session is None:
            raise InvalidKey("no session")
        if not is_own(headers) or not self._session_auth.sessions.is_csrf_token(session, headers.get(CSRF_HEADER, "")):
            raise APIError(403, "The request was not sent from a page of this console.", code="cross_site")
        user = await self._session_auth.user(session)
        if not isinstance(user, TenantUser):
            raise APIError(403, "Only a tenant's key allows this.", code="role_not_allowed")
        require_scope(user.principal, proxy.to)
        request_state(scope).authenticate(user.principal)
        structlog.contextvars.bind_contextvars(tenant=user.principal.tenant_name)
