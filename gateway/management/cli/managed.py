"""Commands on operations: each gets a client of them, wherever they run."""

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import typer

from gateway.errors import OperatorError
from gateway.management.cli.options import DataDir, Url, settings_from

if TYPE_CHECKING:
    from gateway.management.client import AdminClient

P = ParamSpec("P")

URL_VARIABLE = "TURNPIKE_URL"
KEY_VARIABLE = "TURNPIKE_ADMIN_KEY"


def managed(command: "Callable[Concatenate[AdminClient, P], None]") -> Callable[..., None]:
    """A command whose first parameter is the client. Its options get `--url` and `--data-dir`."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        with open_client(given.pop("url"), given.pop("data_dir")) as client:
            command(client, **given)  # type: ignore[call-arg]  # typer gives what the signature says

    _, *own = inspect.signature(command).parameters.values()
    added = {"url": Url, "data_dir": DataDir}
    parameters = [
        *own,
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in added.items()
        ),
    ]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # it tells the options
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    run.__annotations__ = {each.name: each.annotation for each in own} | added
    return run


def open_client(url: str | None, data_dir: Path | None) -> "AdminClient":
    """The operations of, in this order, the gateway at `url` or at `TURNPIKE_URL`; the gateway that serves the data
    directory; this process.

    Raises:
        typer.BadParameter: a URL without a key, or together with a data directory.
        OperatorError: the settings are invalid, or the socket cannot be used.
    """
    from gateway.management.client import open_local, open_remote

    if url is not None and data_dir is not None:
        raise typer.BadParameter("--url and --data-dir exclude each other")
    if url is None and data_dir is None:
        url = os.environ.get(URL_VARIABLE) or None
    if url is None:
        return open_local(settings_from(data_dir=data_dir), warn)
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not key:
        raise typer.BadParameter(f"--url and {URL_VARIABLE} need an administrator's key in {KEY_VARIABLE}")
    return open_remote(url, key, warn)


def warn(message: str) -> None:
    typer.echo(f"turnpike: warning: {message}", err=True)


def refuse_url(what: str) -> None:
    """
    Raises:
        OperatorError: `TURNPIKE_URL` names a gateway, and `what` would work on this machine instead.
    """
    if os.environ.get(URL_VARIABLE):
        raise OperatorError(f"{what} works on this machine's own data: unset {URL_VARIABLE}")
