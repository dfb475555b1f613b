"""Authentication of the console: sessions for keys, and the user of a session's key."""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from starlette.datastructures import Headers

from gateway.http.errors import APIError
from gateway.management.console.headers import is_loopback
from gateway.management.console.links import ConsoleLinks
from gateway.management.console.revocations import SessionRevocations
from gateway.management.console.sessions import LIFETIME, ConsoleSessions, KeyKind, Session
from gateway.management.console.throttle import LoginThrottle
from gateway.management.console.users import AdministratorUser, TenantUser, User
from gateway.management.operations.roles import Administrator
from gateway.tenancy.errors import InvalidKey
from gateway.tenancy.keys import ADMIN_PREFIX
from gateway.tenancy.records import Principal

SESSION_COOKIE = "turnpike_console"
SESSION_SECONDS = int(LIFETIME.total_seconds())

_OWN_ADDRESS = re.compile(r"/console(/[A-Za-z0-9._~%/-]*)?(\?[A-Za-z0-9._~/=&%+:-]*)?")

_ELSEWHERE = re.compile(r"//|/\.")


class Administrators(Protocol):
    """Authentication of administrators' keys, as `AdminApp` does it."""

    async def authenticate(self, presented: str) -> Administrator: ...

    async def in_use(self, key_id: str) -> Administrator: ...


class Tenants(Protocol):
    """The authenticator of tenants' keys."""

    async def authenticate(self, presented: str) -> Principal: ...

    async def in_use(self, public_id: str) -> Principal: ...


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A new session: its cookie's value and its user."""

    token: str
    user: User


class SessionAuth:
    """Opens sessions for keys, ends them, and finds a session's user."""

    def __init__(
        self,
        administrators: Administrators,
        tenants: Tenants,
        ended: SessionRevocations,
        links: ConsoleLinks,
        pepper: bytes,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._administrators = administrators
        self._tenants = tenants
        self._ended = ended
        self._links = links
        self._throttle = LoginThrottle()
        self.sessions = ConsoleSessions(pepper, now)

    async def enter(self, presented: str, address: str) -> OpenedSession:
        """Open a session for who presents a key. `address` is the client's: its tries are counted until they succeed.

        Raises:
            InvalidKey: the key opens nothing.
            APIError: 429, too many failures from there.
            StoreUnavailable: the database does not answer.
        """
        with self._throttled(address):
            if presented.startswith(f"{ADMIN_PREFIX}-"):
                return self._open_for(await self._administrators.authenticate(presented))
            principal = await self._tenants.authenticate(presented)
            return OpenedSession(self.sessions.open(KeyKind.TENANT, principal.key_id), TenantUser(principal))

    async def enter_by_link(self, token: str, address: str) -> OpenedSession:
        """Open a session with the token of a link, which is used up by it.

        Raises:
            InvalidKey: the link is unknown, used or expired, or its key is revoked.
            APIError, StoreUnavailable: as in `enter`.
        """
        with self._throttled(address):
            key_id = await self._links.redeem(token)
            if key_id is None:
                raise InvalidKey("no such link")
            return self._open_for(await self._administrators.in_use(key_id))

    def _open_for(self, administrator: Administrator) -> OpenedSession:
        return OpenedSession(self.sessions.open(KeyKind.ADMIN, administrator.key_id), AdministratorUser(administrator))

    @contextmanager
    def _throttled(self, address: str) -> Iterator[None]:
        wait_s = self._throttle.wait_s(address)
        if wait_s > 0:
            raise APIError(
                429,
                "Too many failed attempts from this address. Wait a minute.",
                code="too_many_logins",
                headers={"retry-after": str(math.ceil(wait_s))},
            )
        self._throttle.count_try(address)
        failed = False
        try:
            yield
        except InvalidKey:
            failed = True
            raise
        finally:
            if not failed:
                self._throttle.forget_try(address)

    async def session(self, token: str) -> Session | None:
        """The session of a cookie's token. None: the token is invalid, or the session has ended or expired.

        Raises:
            StoreUnavailable: the database does not answer, and the session was not seen lately.
        """
        session = self.sessions.read(token)
        return None if session is None or await self._ended.has_ended(session) else session

    async def leave(self, session: Session) -> None:
        """End a session, for all gateways on the same database.

        Raises:
            StoreUnavailable: the database does not answer; the session stays open.
        """
        await self._ended.end(session)

    async def user(self, session: Session) -> User:
        """
        Raises:
            InvalidKey: the key that opened the session is not in use any more.
            StoreUnavailable: the database does not answer, and the key was not seen lately.
        """
        if session.kind is KeyKind.ADMIN:
            return AdministratorUser(await self._administrators.in_use(session.key_id))
        return TenantUser(await self._tenants.in_use(session.key_id))

    async def tenant(self, key_id: str) -> Principal:
        """The tenant of a key, by its public id. Raises as `user` does."""
        return await self._tenants.in_use(key_id)


def own_address(stated: str) -> str:
    """Where to go after the login: `stated` where it is a page of the console, else the first page."""
    return stated if _OWN_ADDRESS.fullmatch(stated) and not _ELSEWHERE.search(stated) else "/console"


def is_secure(scheme: str, headers: Headers) -> bool:
    """Whether a browser that asked like this keeps a cookie marked `Secure`, or needs no mark. A proxy before us may
    have ended TLS."""
    return scheme == "https" or is_loopback(headers) or headers.get("x-forwarded-proto", "").lower() == "https"


def needs_mark(scheme: str, headers: Headers) -> bool:
    """Whether the session's cookie is marked `Secure`: always, but over plain HTTP on this very machine."""
    return scheme != "http" or not is_loopback(headers)
