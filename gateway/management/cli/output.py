"""Output of commands on standard output."""

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def print_records(records: Sequence["DataclassInstance"], columns: Sequence[str], *, as_json: bool) -> None:
    """Records as a JSON list of all their fields, or as a table of some."""
    rows = [{name: _plain(value) for name, value in dataclasses.asdict(record).items()} for record in records]
    if as_json:
        print_json(rows)
        return
    table = [[column.replace("_", " ").upper() for column in columns]]
    table += [[str(row[column] if row[column] is not None else "-") for column in columns] for row in rows]
    widths = [max(len(line[i]) for line in table) for i in range(len(columns))]
    for line in table:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _plain(value: Any) -> Any:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else value
