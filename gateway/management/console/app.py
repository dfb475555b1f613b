"""The console as an ASGI application."""

from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import compile_path
from starlette.types import Message, Receive, Scope, Send

from gateway.http.errors import APIError, ClientGone, as_api_error, internal_error, invalid
from gateway.http.middleware import BodyLimit
from gateway.http.request_state import request_state
from gateway.management.console.admin_proxy import AdminProxy, Serve
from gateway.management.console.forms import NO_FORM, Form, read_form, read_pairs
from gateway.management.console.headers import NEVER_STORED, SECURITY, is_own
from gateway.management.console.links import LINK_PATH
from gateway.management.console.login import SESSION_COOKIE, SessionAuth
from gateway.management.console.login_views import LoginView
from gateway.management.console.page_renderer import PageRenderer, SessionUser
from gateway.management.console.screens import PREFIX, PageRequest, Refusal, Screen, TenantProxy, forbidden
from gateway.management.console.static_files import IMMUTABLE, StaticFiles
from gateway.management.console.template_renderer import TemplateRenderer
from gateway.management.console.tenant_proxies import TenantProxies
from gateway.management.operations.errors import not_found
from gateway.management.operations.operations import Operations, typed_errors
from gateway.tenancy.errors import InvalidKey

MAX_BODY_BYTES = 64 * 1024
"""The largest form, in bytes."""
RETURNED = frozenset({400, 409, 413, 422})
"""Statuses of refusals after which the form is shown again with its values."""

_SESSION_USER = "turnpike.console_guest"

_log = structlog.get_logger("turnpike.console")


class ConsoleApp:
    """An ASGI application for HTTP below the `ErrorMiddleware`. Without a session it serves only the login form, the
    stylesheet and the scripts. Every answer has the headers of `SECURITY`."""

    def __init__(
        self,
        operations: Operations,
        session_auth: SessionAuth,
        screens: Sequence[Screen],
        proxies: Sequence[TenantProxy] = (),
        *,
        serve_admin: Serve,
    ) -> None:
        """`serve_admin` serves a request to the admin API."""
        self.screens = screens
        self._operations = operations
        self._session_auth = session_auth
        self._static = StaticFiles()
        self._page_renderer = PageRenderer(TemplateRenderer(self._static), session_auth.sessions, screens)
        self._login_view = LoginView(session_auth, self._page_renderer)
        self._proxies = TenantProxies(session_auth, proxies)
        self._admin_proxy = AdminProxy(session_auth, serve_admin)
        self._paths = [(compile_path(PREFIX + screen.path)[0], screen) for screen in screens]
        self._pages = BodyLimit(self._serve_page, MAX_BODY_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def send_secured(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in (*SECURITY.items(), *NEVER_STORED.items()):
                    headers.setdefault(name, value)
            await send(message)

        proxy = self._proxies.find(scope["path"]) or self._admin_proxy.find(scope["path"])
        if proxy is not None:
            await proxy(scope, receive, send_secured)
            return
        try:
            await self._pages(scope, receive, send_secured)
        except ClientGone:
            raise
        except Exception as error:
            if started:  # a download that is cut off
                raise
            await self._refuse(Request(scope, receive), error)(scope, receive, send_secured)

    async def _serve_page(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with typed_errors():
            response = await self._response(request)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        path = request.scope["path"]
        if path.startswith(f"{PREFIX}/static/"):
            return self._file(path)
        if request.method not in ("GET", "POST"):
            allow = {"allow": "GET, POST"}
            raise APIError(405, "Method not allowed.", code="method_not_allowed", headers=allow)
        if request.method == "POST" and not is_own(request.headers):
            raise APIError(403, "This form was not sent from a page of this console.", code="cross_site")
        session_user = await self._session_user(request)
        if path == f"{PREFIX}/login":
            return await self._login_view.login(request, session_user)
        if path == LINK_PATH:
            return await self._login_view.link(request, session_user)
        if session_user is None:
            return self._to_login(request)
        request.scope[_SESSION_USER] = session_user
        return await self._answer(request, session_user)

    def _refuse(self, request: Request, error: Exception) -> Response:
        """The response to an error: a page that describes it, or the login form if the key has been revoked."""
        answer = as_api_error(error)
        if answer is None:
            _log.error("unexpected error", exc_info=error)
            answer = internal_error()
        if answer.status == 401:
            return self._to_login(request)
        request_state(request.scope).error = answer.code
        return self._page_renderer.error(request, request.scope.get(_SESSION_USER), answer)

    async def _session_user(self, request: Request) -> SessionUser | None:
        """The user of the request's session; None without a session, or when its key is revoked or expired."""
        session = await self._session_auth.session(request.cookies.get(SESSION_COOKIE, ""))
        if session is None:
            return None
        try:
            user = await self._session_auth.user(session)
        except InvalidKey:
            return None
        request_state(request.scope).key_id = user.key_id
        structlog.contextvars.bind_contextvars(visitor=user.standing)
        return SessionUser(session, user)

    async def _answer(self, request: Request, session_user: SessionUser) -> Response:
        path = request.scope["path"].removeprefix(PREFIX)
        if path == "/":
            return RedirectResponse(PREFIX, 303)
        form = NO_FORM
        if request.method == "POST":
            form = await read_form(request.scope, request.receive)
            if not self._session_auth.sessions.is_csrf_token(session_user.session, form.get("csrf")):
                raise APIError(403, "This form belongs to another session. Go back and reload the page.", code="csrf")
            if path == "/logout":
                return await self._login_view.logout(session_user)
            if path == "/theme":
                return self._login_view.theme(request, form)
        return await self._screen(request, session_user, form)

    async def _screen(self, request: Request, session_user: SessionUser, form: Form) -> Response:
        screen, parts = self._find(request.scope["path"])
        if not screen.admits(session_user.user):
            first = self._page_renderer.first_address(session_user.user)
            if screen.path == "" and first is not None:
                return RedirectResponse(first, 303)
            raise forbidden()
        request_id = request_state(request.scope).request_id
        query = read_pairs(request.scope["query_string"])
        address = request.scope["path"].removeprefix(PREFIX)
        origin = f"{request.url.scheme}://{request.url.netloc}"
        page_request = PageRequest(
            session_user.user,
            self._operations,
            request_id,
            address,
            parts,
            query,
            form,
            origin=origin,
            session=session_user.session,
        )
        if request.method == "GET":
            return self._page_renderer.respond(request, session_user, screen, await screen.get(page_request))
        act = form.get("act")
        if act not in screen.post:
            raise invalid("act", "This page has no such form.")
        try:
            with typed_errors():
                answer = await screen.post[act](page_request)
        except APIError as error:
            if error.status not in RETURNED:
                raise
            refused = Refusal(act, error, form)
            again = replace(page_request, form=NO_FORM, refused=refused)
            return self._page_renderer.respond(request, session_user, screen, await screen.get(again), refused)
        return self._page_renderer.respond(request, session_user, screen, answer)

    def _find(self, path: str) -> tuple[Screen, dict[str, str]]:
        for pattern, screen in self._paths:
            if match := pattern.match(path):
                return screen, match.groupdict()
        raise not_found()

    def _to_login(self, request: Request) -> Response:
        query = request.url.query
        address = request.url.path + (f"?{query}" if query else "")
        target = f"{PREFIX}/login"
        if request.method == "GET" and address != PREFIX:
            target += f"?next={quote(address, safe='')}"
        response = RedirectResponse(target, 303)
        if SESSION_COOKIE in request.cookies:  # not there with a link from elsewhere: that ends no session
            response.delete_cookie(SESSION_COOKIE, path=PREFIX)
        return response

    def _file(self, path: str) -> Response:
        edition, _, name = path.removeprefix(f"{PREFIX}/static/").partition("/")
        file = self._static.find(edition, name)
        if file is None:
            return Response("Not found", 404, media_type="text/plain")
        return Response(file.content, headers={"cache-control": IMMUTABLE}, media_type=file.media_type)
