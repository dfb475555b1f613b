"""turnpike session show, set: what becomes of the oldest turns of tenants' sessions."""

from typing import TYPE_CHECKING, Annotated

import typer

from gateway.management.cli.options import DataDir, settings_from
from gateway.management.cli.store import with_database, with_operations

if TYPE_CHECKING:
    from gateway.management.operations.local import LocalOperations

DEFAULT = "default"


def show(tenant: Annotated[str, typer.Argument(help="The tenant's name.")], data_dir: DataDir = None) -> None:
    """Show what becomes of the oldest turns of a tenant's sessions."""
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
            help="sliding: they are dropped. summary: a model sums them up, at the tenant's cost. default: what the "
            "settings say.",
        ),
    ],
    data_dir: DataDir = None,
) -> None:
    """Choose what becomes of the oldest turns of a tenant's sessions. Running gateways follow within 5 seconds."""
    from gateway.sessions.policy import SessionWindow

    if window not in (DEFAULT, *SessionWindow):
        raise typer.BadParameter(f"--window is {', '.join(SessionWindow)} or {DEFAULT}")
    body = {"window": None if window == DEFAULT else window}

    async def change(operations: "LocalOperations") -> None:
        await operations.change("replaceSessionWindow", await operations.path_of(tenant), body)

    with_operations(settings_from(data_dir=data_dir), change)
    typer.echo(f"the session window of tenant {tenant} is {window}")
