"""The login form, logout and the choice of a theme."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.http.errors import APIError
from gateway.http.request_state import request_state
from gateway.management.console.forms import Form, read_form
from gateway.management.console.login import SESSION_COOKIE, SESSION_SECONDS, SessionAuth, is_secure, own_address
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
_NO_PAGE = "This key is for none of the console's pages: its scopes leave out usage and chat."


class LoginView:
    """Handles `/login`, `/logout` and `/theme`. The caller has checked that a POST is same-origin."""

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
        client = "" if request.client is None else request.client.host
        try:
            entry = await self._session_auth.enter(form.get("key").strip(), client)
        except InvalidKey:
            request_state(request.scope).error = "invalid_api_key"
            return self._page_renderer.login(request, address, secure=secure, error=_UNKNOWN_KEY, status=401)
        except APIError as error:
            if error.status != 429:
                raise
            request_state(request.scope).error = error.code
            response = self._page_renderer.login(request, address, secure=secure, error=error.message, status=429)
            response.headers.update(error.headers)
            return response
        request_state(request.scope).key_id = entry.user.key_id
        first = self._page_renderer.first_address(entry.user)
        if first is None:
            return self._page_renderer.login(request, address, secure=secure, error=_NO_PAGE, status=403)
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
