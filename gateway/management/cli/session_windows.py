"""turnpike session show, set: a tenant's policy for turns that exceed the context window."""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.options import DataDir, settings_from
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from gateway.management.operations.local import LocalOperations

DEFAULT = "default"


def show(tenant: Annotated[str, typer.Argument(help="The tenant's name.")], data_dir: DataDir = None) -> None:
    """Show a tenant's policy for the oldest turns of long sessions."""
    from gateway.tenancy.session_windows import SessionWindowTable

    window = with_database(
        settings_from(data_dir=data_dir), lambda database: SessionWindowTable(database).window_of(tenant)
    )
    typer.echo(DEFAULT if window is None else window.value)


def set_window(
    tenant: Annotated[str, typer.Argument(help="The tenant's name.")],
    window: Annotated[
        str,
        typer.Option(
            "--window",
            help="sliding drops the oldest turns. summary has a model summarise them, at the tenant's cost. default "
            "is the setting session_window.",
        ),
    ],
    data_dir: DataDir = None,
) -> None:
    """Set a tenant's policy for the oldest turns of long sessions. Running gateways apply it within 5 seconds."""
    from gateway.sessions.policy import SessionWindow

    if window not in (DEFAULT, *SessionWindow):
        raise typer.BadParameter(f"--window is {', '.join(SessionWindow)} or {DEFAULT}")
    body = {"window": None if window == DEFAULT else window}

    async def change(operations: "LocalOperations") -> None:
        await operations.change("replaceSessionWindow", await operations.path_of(tenant), body)

    with_operations(settings_from(data_dir=data_dir), change)
    typer.echo(f"the session window of tenant {tenant} is {window}")
