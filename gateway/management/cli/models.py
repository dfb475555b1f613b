"""turnpike models"""

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.errors import OperatorError
from gateway.management.cli.managed import open_client, refuse_url, warn
from gateway.management.cli.options import AsJson, DataDir, default_name, settings_from
from gateway.management.cli.output import print_list
from gateway.management.cli.prices import CachedPrice, create_price, parse_number

if TYPE_CHECKING:
    from gateway.config.settings import Settings

Revision = Annotated[str | None, typer.Option(help="Of OWNER/NAME: a branch, tag or commit.", show_default="main")]
File = Annotated[str | None, typer.Option(help="Of OWNER/NAME: the GGUF file to fetch, where it has several.")]
FREE = "0"


def add(
    model: Annotated[
        str,
        typer.Argument(
            metavar="PATH|OWNER/NAME[:FILE.gguf]|NAME",
            help="A folder or GGUF file, a repository of the hub, or a catalogue's name.",
        ),
    ],
    input: Annotated[
        str | None, typer.Option("--input", metavar="D", help="Dollars per million tokens of prompts.")
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", metavar="D", help="Dollars per million tokens of answers.")
    ] = None,
    cached: CachedPrice = None,
    free: Annotated[bool, typer.Option("--free", help="In place of --input and --output: it costs nothing.")] = False,
    name: Annotated[
        str | None, typer.Option("--name", help="Name that it is served under. [default: of the file or repository]")
    ] = None,
    revision: Revision = None,
    file: File = None,
    data_dir: DataDir = None,
) -> None:
    """Fetch a model if it is missing, set its price, and enter it in turnpike.toml of the data directory.

    Says first what is downloaded and what the model needs of the memory. The next start of turnpike serve serves it.
    Works on this machine only, as the files are there.
    """
    if free == (input is not None or output is not None or cached is not None) or (input is None) != (output is None):
        raise typer.BadParameter("give --input and --output, or --free")
    prices = (FREE if input is None else input, FREE if output is None else output, cached)
    for option, number in zip(("--input", "--output", "--cached"), prices, strict=True):
        if number is not None:
            parse_number(option, number)
    if data_dir is None:
        refuse_url("turnpike models add")
    settings = settings_from(data_dir=data_dir)
    served = name or default_name(model)
    _require_free_name(settings, served)
    path = _fetched(settings, model, revision, file)
    with open_client(None, data_dir) as client:
        create_price(client, served, *prices, warns=False)
    _enter(settings, served, path, data_dir)
    typer.echo(f"turnpike serve serves it as {served} from its next start on")


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|OWNER/NAME[:FILE.gguf]",
            help="A name from `turnpike models list`, or a repository on the Hugging Face Hub.",
        ),
    ],
    revision: Revision = None,
    file: File = None,
    data_dir: DataDir = None,
) -> None:
    """Download a model unless it is present, and print its path.

    Says first, on standard error, what is downloaded and what the model needs of the memory. A model that cannot be
    served here is refused before its weights are downloaded. A download that breaks off is resumed.
    """
    from gateway.process.model_fetching import fetch_servable

    settings = settings_from(data_dir=data_dir)
    typer.echo(fetch_servable(settings, name, partial(typer.echo, err=True), revision=revision, file=file))


def list_all(as_json: AsJson = False, data_dir: DataDir = None) -> None:
    """List the models that can be fetched."""
    from engine.catalog.catalog import available

    settings = settings_from(data_dir=data_dir)
    columns = (
        ("NAME", "name"),
        ("FETCHED", "fetched"),
        ("SIZE BYTES", "size_bytes"),
        ("LICENSE", "license"),
        ("DESCRIPTION", "description"),
    )
    models = [dataclasses.asdict(each) for each in available(settings.models_dir)]
    print_list(models, columns, as_json=as_json, empty="no model can be fetched by name")


def _require_free_name(settings: "Settings", name: str) -> None:
    """
    Raises:
        OperatorError: a model cannot have that name, or has it.
    """
    from gateway.common.model_names import MODEL_NAME

    if not re.fullmatch(MODEL_NAME, name):
        raise OperatorError(f"a model cannot be served as {name!r}: give another --name")
    if name in settings.models:
        raise OperatorError(f"the settings have a model {name}: {settings.models[name]}")


def _fetched(settings: "Settings", model: str, revision: str | None, file: str | None) -> Path:
    """The model's path, downloaded if missing. It can be served, and its weights fit in memory.

    Raises:
        OperatorError: one of these does not hold.
    """
    from engine.models.config import UnsupportedCheckpoint
    from gateway.process.catalog import is_fetchable
    from gateway.process.model_fetching import fetch_servable
    from gateway.process.model_memory import require_memory, size_of

    path = Path(model).expanduser()
    if path.exists():
        path = path.absolute()
    elif not is_fetchable(model, settings.models_dir):
        raise OperatorError(f"there is no {model}")
    else:
        path = fetch_servable(settings, model, typer.echo, revision=revision, file=file)
    try:
        size = size_of(settings, path)
    except (UnsupportedCheckpoint, OSError) as error:
        raise OperatorError(f"{path}: {error}") from error
    typer.echo(f"{path}: {size}")
    memory, fits = require_memory(settings, size.weights_bytes)
    if not fits:
        warn(f"set kv_cache_bytes lower: {memory}")
    elif memory:
        typer.echo(f"memory: {memory}")
    return path


def _enter(settings: "Settings", name: str, path: Path, data_dir: Path | None) -> None:
    """Enter the model in the data directory's settings."""
    from gateway.config.setting_sources import CONFIG_FILE
    from gateway.config.toml_edit import set_in_table

    config = settings.data_dir / CONFIG_FILE
    set_in_table(config, "models", name, str(path))
    if settings_from(data_dir=data_dir).models.get(name) != path:
        warn(f"models is set elsewhere, too, which takes precedence over {config}: turnpike config show")
