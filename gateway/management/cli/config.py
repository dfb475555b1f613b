"""turnpike config"""

from typing import Annotated

import typer

from gateway.management.cli.options import AsJson, DataDir, settings_from
from gateway.management.cli.output import print_json


def show(
    effective: Annotated[
        bool, typer.Option("--effective", help="All settings, with the defaults of those that are not set.")
    ] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the settings that are set, as TOML, and where each comes from. Secrets are left out."""
    from gateway.config.shown import DEFAULT, shown, to_toml

    settings = settings_from(data_dir=data_dir)
    found = [each for each in shown(settings, data_dir) if effective or each.origin != DEFAULT]
    if as_json:
        print_json({each.key: {"value": each.value, "origin": each.origin} for each in found})
        return
    for each in found:
        line = f"# {each.key} is not set" if each.value is None else f"{each.key} = {to_toml(each.value)}"
        typer.echo(f"{line}  # {each.origin}")


def example() -> None:
    """Print a turnpike.toml with every setting, its meaning and its default, each commented out."""
    from gateway.config.shown import example_toml

    typer.echo(example_toml(), nl=False)
