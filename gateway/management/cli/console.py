"""turnpike console"""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.admin_keys import RoleName
from gateway.management.cli.options import DataDir, settings_from
from gateway.management.cli.store import with_database

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

    from gateway.management.console.links import ConsoleLink


def link(
    role: Annotated[RoleName, typer.Option("--role", help="Role of the session.")] = RoleName.ADMIN,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="URL", help="Address of the gateway for browsers. [default: the settings']"),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Print a link that logs in to the console once, within 10 minutes. It is a secret."""
    from gateway.config.pepper import load_pepper
    from gateway.management.console.links import ConsoleLinks
    from gateway.management.operations.change import command_line_actor
    from gateway.management.operations.local import current_user
    from gateway.management.operations.roles import Role
    from gateway.process.listener import url_of

    settings = settings_from(data_dir=data_dir)
    user = current_user()

    async def make(database: "AsyncEngine") -> "ConsoleLink":
        links = ConsoleLinks(database, load_pepper(settings))
        base = address or url_of(settings.host, settings.port)
        return await links.create(base, Role(role), user, command_line_actor(user))

    typer.echo(with_database(settings, make).url)
