"""turnpike models"""

import dataclasses
from typing import Annotated

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_list
from gateway.process.progress import progress


def fetch(
    name: Annotated[
        str, typer.Argument(help="A name from `turnpike models list`, or OWNER/NAME on the Hugging Face Hub.")
    ],
    revision: Annotated[
        str | None, typer.Option(help="Of OWNER/NAME: a branch, tag or commit.", show_default="main")
    ] = None,
    file: Annotated[
        str | None, typer.Option(help="Of OWNER/NAME: the GGUF file to fetch, where it has several.")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Download a model unless it is present, and print its path."""
    from gateway.process.catalog import fetch_model

    settings = settings_from(data_dir=data_dir)
    with progress() as report:
        path = fetch_model(name, settings.models_dir, report, revision=revision, file=file)
    typer.echo(path)


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
