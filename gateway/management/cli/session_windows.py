"""turnpike session show, set: what becomes of the oldest turns of tenants' sessions."""

from typing import Annotated

import typer

from gateway.management.cli.options import DataDir, settings_from
from gateway.management.cli.store import with_database

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
    from gateway.tenancy.session_windows import SessionWindowTable

    if window not in (DEFAULT, *SessionWindow):
        raise typer.BadParameter(f"--window is {', '.join(SessionWindow)} or {DEFAULT}")
    chosen = None if window == DEFAULT else SessionWindow(window)
    with_database(
        settings_from(data_dir=data_dir), lambda database: SessionWindowTable(database).change(tenant, chosen)
    )
    typer.echo(f"the session window of tenant {tenant} is {window}")
