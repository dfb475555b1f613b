"""The admin API for processes on this machine that connect by the Unix socket: their user is their key."""

from starlette.types import Receive, Scope, Send

from gateway.http.errors import APIError
from gateway.management.http.app import AdminApp
from gateway.management.operations.local import local_administrator

PEER_UID = "turnpike.peer_uid"
"""In the scope of a request: the user of the process that sent it."""
ROOT = 0


class PeerAuthentication:
    """An ASGI application: the admin API in the name of the operating system's user, who may do everything. That user
    is the gateway's own or root: both can read the gateway's secrets anyway."""

    def __init__(self, admin: AdminApp, owner_uid: int) -> None:
        self._admin = admin
        self._owner_uid = owner_uid

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        uid = scope.get(PEER_UID)
        if uid not in (self._owner_uid, ROOT):
            raise APIError(403, "This socket is for the user of the gateway.", code="user_not_allowed")
        await self._admin.serve(local_administrator(uid), scope, receive, send)
