"""Output of commands on standard output."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Any

import typer

PAGE = 200
"""Rows whose widths are aligned with each other: a long list is printed as it arrives."""

Column = tuple[str, str | Callable[[Mapping[str, Any]], Any]]
"""The heading of a column, and its member or a function of the record."""


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, default=str))


def print_list(records: Iterable[Mapping[str, Any]], columns: Sequence[Column], *, as_json: bool, empty: str) -> None:
    """Records as a JSON array of all their members, or as a table of `columns`. Either is printed while the records
    arrive. `empty`: what is said in place of a table without rows, on standard error."""
    if as_json:
        _print_array(records)
        return
    rows = iter(records)
    first = next(rows, None)
    if first is None:
        typer.echo(empty, err=True)
        return
    rows = chain([first], rows)
    widths = [0] * len(columns)
    headings = [heading for heading, _ in columns]
    while batch := list(islice(rows, PAGE)):
        lines = [[_cell(record, source) for _, source in columns] for record in batch]
        if headings:
            lines.insert(0, headings)
            headings = []
        widths = [max(width, *(len(line[i]) for line in lines)) for i, width in enumerate(widths)]
        for line in lines:
            typer.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_csv(records: Iterable[Mapping[str, Any]]) -> None:
    """Records as CSV (RFC 4180) with all their members, printed while they arrive. Without records: nothing."""
    from gateway.spreadsheet import guarded

    writer = csv.writer(sys.stdout)
    names: list[str] = []
    for record in records:
        if not names:
            names = list(record)
            writer.writerow(names)
        writer.writerow([guarded(record[name]) for name in names])


def print_record(record: Mapping[str, Any], *, as_json: bool) -> None:
    """A record as JSON, or a line for each member."""
    if as_json:
        print_json(record)
        return
    width = max(map(len, record), default=0)
    for name, value in record.items():
        typer.echo(f"{name.ljust(width)}  {_text(value)}".rstrip())


def shown_time(text: str) -> str:
    """A timestamp of the API for a reader: local time on a terminal, as it is elsewhere."""
    if not sys.stdout.isatty():
        return text
    return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _print_array(records: Iterable[Mapping[str, Any]]) -> None:
    opened = False
    for record in records:
        text = json.dumps(record, indent=2, default=str).replace("\n", "\n  ")
        typer.echo(f"{',' if opened else '['}\n  {text}", nl=False)
        opened = True
    typer.echo("\n]" if opened else "[]")


def _cell(record: Mapping[str, Any], source: str | Callable[[Mapping[str, Any]], Any]) -> str:
    return _text(source(record) if callable(source) else record[source])


def _text(value: Any) -> str:
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case str():
            return shown_time(value) if _is_time(value) else value
        case Mapping() | list():
            return json.dumps(value, default=str)
        case _:
            return str(value)


def _is_time(text: str) -> bool:
    """Whether a text is a timestamp as the API writes it."""
    return len(text) == len("2026-01-02T03:04:05.000000Z") and text[10] == "T" and text.endswith("Z")
