"""Responses of the console: pages in their frame, error pages, redirects, documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from gateway.http.errors import APIError
from gateway.http.request_state import request_state
from gateway.management.console.login import needs_mark
from gateway.management.console.screens import (
    PREFIX,
    Answer,
    Document,
    Download,
    Fragment,
    Page,
    Redirect,
    Refusal,
    Screen,
)
from gateway.management.console.sessions import ConsoleSessions, Session
from gateway.management.console.template_renderer import PageFrame, TemplateRenderer
from gateway.management.console.users import User

SAID_COOKIE = "turnpike_said"
"""The cookie that carries the message of a change to the page after the redirect."""
SAID_SECONDS = 30
THEME_COOKIE = "turnpike_theme"
THEME_SECONDS = 400 * 24 * 3600
THEMES = ("auto", "light", "dark")


@dataclass(frozen=True, slots=True)
class SessionUser:
    """A session and its user."""

    session: Session
    user: User


class PageRenderer:
    """Makes responses. `screens`: all screens; those that a user may see are the navigation."""

    def __init__(self, templates: TemplateRenderer, sessions: ConsoleSessions, screens: Sequence[Screen]) -> None:
        self._templates = templates
        self._sessions = sessions
        self._screens = screens

    def respond(
        self,
        request: Request,
        session_user: SessionUser,
        screen: Screen,
        answer: Answer,
        refused: Refusal | None = None,
    ) -> Response:
        match answer:
            case Page():
                frame = self._frame(request, session_user, screen.title, screen.name, refused)
                status = answer.status if refused is None else refused.error.status
                return self._page(request, answer.template, frame, answer.values, status)
            case Fragment():
                frame = self._frame(request, session_user, screen.title, screen.name, None)
                return HTMLResponse(self._templates.page(answer.template, frame, answer.values))
            case Redirect():
                return self._redirect(request, answer)
            case Document():
                headers = {}
                if answer.filename is not None:
                    headers = _attached(answer.filename)
                return Response(answer.content, headers=headers, media_type=answer.media_type)
            case Download():
                headers = _attached(answer.filename)
                return StreamingResponse(answer.parts, headers=headers, media_type=answer.media_type)

    def error(self, request: Request, session_user: SessionUser | None, error: APIError) -> Response:
        """A page with the message of an `APIError`."""
        title = _TITLES.get(error.status, "Error")
        values = {"error": error, "request_id": request_state(request.scope).request_id}
        response = self._page(request, "error.html", self._frame(request, session_user, title), values, error.status)
        response.headers.update(error.headers)
        return response

    def login(self, request: Request, address: str, *, secure: bool, error: str = "", status: int = 200) -> Response:
        """The form to log in, which leads to `address`."""
        values = {"next": address, "error": error, "secure": secure}
        return self._page(request, "login.html", self._frame(request, None, "Log in"), values, status)

    def link(self, request: Request, token: str | None, *, error: str = "", status: int = 200) -> Response:
        """The page of a link that logs in. `token`: its token; None: the link was refused. The token is in the page's
        address: no request from the page repeats it."""
        frame = self._frame(request, None, "Log in")
        response = self._page(request, "link.html", frame, {"token": token, "error": error}, status)
        response.headers["referrer-policy"] = "strict-origin"
        return response

    def first_address(self, user: User) -> str | None:
        """The address of the first screen that a user may see; None if there is none."""
        return next((PREFIX + screens[0].path for screens in self._navigation(user).values()), None)

    def _frame(
        self,
        request: Request,
        session_user: SessionUser | None,
        title: str,
        here: str = "",
        refused: Refusal | None = None,
    ) -> PageFrame:
        theme = request.cookies.get(THEME_COOKIE, "")
        query = request.url.query
        return PageFrame(
            user=None if session_user is None else session_user.user,
            title=title,
            csrf="" if session_user is None else self._sessions.csrf_token(session_user.session),
            theme=theme if theme in THEMES else THEMES[0],
            navigation={} if session_user is None else self._navigation(session_user.user),
            here=here,
            address=request.url.path + (f"?{query}" if query else ""),
            said=unquote(request.cookies.get(SAID_COOKIE, "")),
            refused=refused,
        )

    def _page(
        self, request: Request, template: str, frame: PageFrame, values: Mapping[str, Any], status: int
    ) -> Response:
        response = HTMLResponse(self._templates.page(template, frame, values), status)
        if frame.said:
            response.delete_cookie(SAID_COOKIE, path=PREFIX)
        return response

    def _redirect(self, request: Request, answer: Redirect) -> Response:
        response = RedirectResponse(PREFIX + answer.path, 303)
        if answer.said:
            set_cookie(request, response, SAID_COOKIE, quote(answer.said), SAID_SECONDS)
        return response

    def _navigation(self, user: User) -> Mapping[str, Sequence[Screen]]:
        sections: dict[str, list[Screen]] = {}
        for screen in self._screens:
            if screen.section is not None and screen.admits(user):
                sections.setdefault(screen.section, []).append(screen)
        return sections


def _attached(filename: str) -> dict[str, str]:
    return {"content-disposition": f"attachment; filename*=UTF-8''{quote(filename)}"}


def set_cookie(request: Request, response: Response, name: str, value: str, seconds: int) -> None:
    """Set a cookie that is sent to the console alone and is hidden from scripts."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=PREFIX,
        secure=needs_mark(request.url.scheme, request.headers),
        httponly=True,
        samesite="strict",
    )


_TITLES = {
    400: "Invalid request",
    403: "Not allowed",
    404: "Page not found",
    409: "Conflict",
    429: "Too many requests",
    503: "Temporarily unavailable",
}
