"""Operations by the operating system's users on the server itself, who may do everything."""

import os
import pwd
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.management.operations.change import Changes, command_line_actor
from gateway.management.operations.context import AdminContext
from gateway.management.operations.operations import Operations
from gateway.management.operations.resources import admin_routes
from gateway.management.operations.roles import Administrator, Role

_EMPTY: Mapping[str, Any] = MappingProxyType({})


class LocalOperations:
    """Operations by the user who runs this process. The audit log names the user. Every method raises `APIError` as the
    admin API would answer."""

    def __init__(self, context: AdminContext, operations: Operations | None = None) -> None:
        """`operations`: those of this process, if it has some already."""
        changes = Changes(context.database, context.pepper, context.now)
        self._operations = operations or Operations(admin_routes(context), changes)
        self._administrator = local_administrator(os.getuid())

    async def read(self, name: str, path: Mapping[str, str] = _EMPTY, query: Mapping[str, str] = _EMPTY) -> Any:
        """The answer of a read, as its record describes it, or a `Document`."""
        return await self._operations.read(name, self._administrator, path, query)

    async def change(
        self,
        name: str,
        path: Mapping[str, str] = _EMPTY,
        body: Mapping[str, Any] = _EMPTY,
    ) -> Any:
        """The answer of a change, as its record describes it."""
        return await self._operations.change(name, self._administrator, "", path, body)

    async def store(
        self,
        name: str,
        content: bytes,
        path: Mapping[str, str] = _EMPTY,
        query: Mapping[str, str] = _EMPTY,
    ) -> Any:
        """The answer to the bytes of a file, as its record describes it."""
        return await self._operations.store(name, self._administrator, content, path, query)


def local_administrator(uid: int) -> Administrator:
    """A user of this machine as an administrator. The audit log names the user."""
    user = user_name(uid)
    return Administrator(command_line_actor(user), user, Role.ADMIN)


def current_user() -> str:
    """The name of the user that this process runs as."""
    return user_name(os.getuid())


def user_name(uid: int) -> str:
    """The login name of a user, or the user's number where it has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
