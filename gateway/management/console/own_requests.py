"""Requests that scripts of the console's own pages send, in the name of their session."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from gateway.http.errors import APIError, as_api_error
from gateway.management.console.headers import NEVER_STORED, SECURITY, is_own
from gateway.management.console.login import SESSION_COOKIE, SessionAuth
from gateway.management.console.sessions import Session
from gateway.tenancy.errors import InvalidKey

CSRF_HEADER = "x-csrf-token"


async def session_of(session_auth: SessionAuth, scope: Scope) -> Session:
    """The session whose page has sent a request.

    Raises:
        InvalidKey: there is no session.
        APIError: 403, not from a page of this console.
    """
    headers = Headers(scope=scope)
    session = await session_auth.session(Request(scope).cookies.get(SESSION_COOKIE, ""))
    if session is None:
        raise InvalidKey("no session")
    if not is_own(headers) or not session_auth.sessions.is_csrf_token(session, headers.get(CSRF_HEADER, "")):
        raise APIError(403, "The request was not sent from a page of this console.", code="cross_site")
    return session


@contextmanager
def secured_errors() -> Iterator[None]:
    """Errors get the headers of the console's answers."""
    try:
        yield
    except Exception as error:
        answer = as_api_error(error)
        if answer is None:
            raise
        answer.headers |= {**SECURITY, **NEVER_STORED}
        raise answer from error
