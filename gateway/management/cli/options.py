"""Options that several commands share, and how they become settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from gateway.config.settings import Settings

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder of the database, the secrets and turnpike.toml. [default: $XDG_DATA_HOME/turnpike]",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The gateway to manage, with an administrator's key in TURNPIKE_ADMIN_KEY. [default: $TURNPIKE_URL, or "
        "else the data directory and the gateway that serves it]",
    ),
]
TenantOption = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant.")]
TenantFilter = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Start, ISO 8601, UTC without an offset.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="End, not included. [default: now]")]
Limit = Annotated[int, typer.Option("--limit", min=0, help="Maximum number of entries; 0: all.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV with all fields.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def settings_from(**flags: Any) -> "Settings":
    """The settings, with these flags over the environment and the files."""
    from gateway.config.settings import load_settings

    return load_settings(**flags)


def parse_models(options: list[str]) -> dict[str, str]:
    """`[NAME=]MODEL` options: how each model is stated, by its served name.

    Raises:
        typer.BadParameter: one of another form, or a name twice.
    """
    models: dict[str, str] = {}
    for option in options:
        name, equals, model = option.partition("=")
        if not equals or "/" in name[:1]:
            name, model = default_name(option), option
        if not (name and model):
            raise typer.BadParameter(f"{option!r} is not [NAME=]MODEL, as in --model qwen=/models/qwen3")
        if name in models:
            raise typer.BadParameter(f"the model name {name!r} is given twice")
        models[name] = model
    return models


def default_name(model: str) -> str:
    """The served name of a model that is stated without one: of its repository, folder or file."""
    repository = model.partition(":")[0] if model.endswith(".gguf") else model
    return Path(repository).name.removesuffix(".gguf")
