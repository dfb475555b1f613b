"""The login form, links that log in, logout and the choice of a theme."""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.http.errors import APIError
from gateway.http.request_state import request_state
from gateway.management.console.forms import Form, read_form
from gateway.management.console.login import (
    SESSION_COOKIE,
    SESSION_SECONDS,
    OpenedSession,
    SessionAuth,
    is_secure,
    own_address,
)
from gateway.management.console.page_renderer import (
    THEME_COOKIE,
    THEME_SECONDS,
    THEMES,
    PageRenderer,
    SessionUser,
    set_cookie,
)
from gateway.management.console.screens import PREFIX
from gateway.tenancy.errors import InvalidKey

_UNKNOWN_KEY = "This key does not open the console. It may be mistyped, revoked, expired, or of a suspended tenant."
_USED_LINK = "This link is used, expired or unknown. Make another one, or log in with a key."
_NO_PAGE = "This key is for none of the console's pages: its scopes leave out usage and chat."


class LoginView:
    """Handles `/login`, `/link`, `/logout` and `/theme`. The caller has checked that a POST is same-origin."""

    def __init__(self, session_auth: SessionAuth, page_renderer: PageRenderer) -> None:
        self._session_auth = session_auth
        self._page_renderer = page_renderer

    async def login(self, request: Request, session_user: SessionUser | None) -> Response:
        secure = is_secure(request.url.scheme, request.headers)
        if request.method == "GET":
            address = own_address(request.query_params.get("next", ""))
            if session_user is not None:
                return RedirectResponse(address, 303)
            return self._page_renderer.login(request, address, secure=secure)
        form = await read_form(request.scope, request.receive)
        address = own_address(form.get("next"))

        def refuse(status: int, code: str, message: str) -> Response:
            request_state(request.scope).error = code
            return self._page_renderer.login(request, address, secure=secure, error=message, status=status)

        entering = self._session_auth.enter(form.get("key").strip(), _client(request))
        return await self._enter(request, address, entering, refuse, _UNKNOWN_KEY)

    async def link(self, request: Request, session_user: SessionUser | None) -> Response:
        """`/link?token=`: a page whose button logs in, so that no preview of the link uses it up."""
        if request.method == "GET":
            if session_user is not None:
                return RedirectResponse(PREFIX, 303)
            return self._page_renderer.link(request, request.query_params.get("token", ""))

        def refuse(status: int, code: str, message: str) -> Response:
            request_state(request.scope).error = code
            return self._page_renderer.link(request, None, error=message, status=status)

        form = await read_form(request.scope, request.receive)
        entering = self._session_auth.enter_by_link(form.get("token").strip(), _client(request))
        return await self._enter(request, PREFIX, entering, refuse, _USED_LINK)

    async def _enter(
        self,
        request: Request,
        address: str,
        entering: Awaitable[OpenedSession],
        refuse: Callable[[int, str, str], Response],
        unknown: str,
    ) -> Response:
        """Redirect to `address` in a new session, or refuse. `unknown`: the message if nothing is opened."""
        try:
            entry = await entering
        except InvalidKey:
            return refuse(401, "invalid_api_key", unknown)
        except APIError as error:
            if error.status != 429:
                raise
            response = refuse(429, error.code or "", error.message)
            response.headers.update(error.headers)
            return response
        request_state(request.scope).key_id = entry.user.key_id
        first = self._page_renderer.first_address(entry.user)
        if first is None:
            return refuse(403, "scope_not_allowed", _NO_PAGE)
        response = RedirectResponse(first if address == PREFIX else address, 303)
        set_cookie(request, response, SESSION_COOKIE, entry.token, SESSION_SECONDS)
        return response

    async def logout(self, session_user: SessionUser) -> Response:
        await self._session_auth.leave(session_user.session)
        response = RedirectResponse(f"{PREFIX}/login", 303)
        response.delete_cookie(SESSION_COOKIE, path=PREFIX)
        return response

    def theme(self, request: Request, form: Form) -> Response:
        """Set the theme's cookie and redirect to the page of the form."""
        response = RedirectResponse(own_address(form.get("next")), 303)
        if (theme := form.get("theme")) in THEMES:
            set_cookie(request, response, THEME_COOKIE, theme, THEME_SECONDS)
        return response


def _client(request: Request) -> str:
    return "" if request.client is None else request.client.host
