"""Operations by the operating system's user on the server itself: the command line's interface to them."""

import os
import pwd
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import OperatorError
from gateway.http.errors import APIError
from gateway.management.operations.change import Changes, command_line_actor
from gateway.management.operations.context import AdminContext
from gateway.management.operations.operations import Operations
from gateway.management.operations.resources import admin_routes
from gateway.management.operations.roles import Administrator, Role
from gateway.tenancy.queries import tenant_id_of

_EMPTY: Mapping[str, str] = MappingProxyType({})


class RefusedOperation(OperatorError):
    """An operation does not take its arguments."""


class LocalOperations:
    """Changes by the user who runs this process, who may make all of them. The audit log names the user."""

    def __init__(self, context: AdminContext, operations: Operations | None = None) -> None:
        """`operations`: those of this process, if it has some already."""
        self.context = context
        changes = Changes(context.database, context.pepper, context.now)
        self._operations = operations or Operations(admin_routes(context), changes)
        user = current_user()
        self._administrator = Administrator(command_line_actor(user), user, Role.ADMIN)

    async def change(self, name: str, path: Mapping[str, str] = _EMPTY, body: Any = None) -> Any:
        """The answer of an operation, as its record describes it. `body` is as its handler takes it.

        Raises:
            OperatorError: the operation's own, or `RefusedOperation`.
        """
        try:
            return await self._operations.perform(name, self._administrator, path, body)
        except APIError as error:
            raise RefusedOperation(f"{error.message[:1].lower()}{error.message[1:]}".rstrip(".")) from error

    async def path_of(self, tenant_name: str) -> Mapping[str, str]:
        """The path of a tenant's operations.

        Raises:
            UnknownTenant: no tenant has that name.
        """
        async with self.context.reading() as connection:
            return {"tenant_id": await tenant_id_of(connection, tenant_name)}


def current_user() -> str:
    """The login name of the user that this process runs as, or the user's number where it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
