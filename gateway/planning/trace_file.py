"""Recorded requests from CSV or JSON lines."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.planning.trace import TraceRow, TraceTraffic
from gateway.errors import OperatorError

REQUIRED = ("arrival_s", "tenant", "class", "prompt_tokens", "output_tokens")
OPTIONAL = ("prefix_group", "prefix_tokens", "session")
_MOST_TOKENS = 10_000_000


def read_trace(path: Path) -> TraceTraffic:
    """The requests of a file: CSV with a header, or JSON lines where its name ends in `.jsonl`. Times begin with the
    first request.

    Raises:
        OperatorError: the file cannot be read, has no requests, or a field is missing or wrong; the message names the
            line and the field.
    """
    records = _json_lines if path.suffix == ".jsonl" else _csv_lines
    try:
        rows = [_row(path, line, record) for line, record in records(path)]
    except OSError as error:
        raise OperatorError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OperatorError(f"{path} is not UTF-8") from None
    if not rows:
        raise OperatorError(f"{path} has no requests")
    rows.sort(key=lambda row: row.at_s)
    start_s = rows[0].at_s
    return TraceTraffic(tuple(row._replace(at_s=row.at_s - start_s) for row in rows))


def _csv_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        _check_names(path, 1, reader.fieldnames or ())
        for record in reader:
            if None in record or None in record.values():
                raise OperatorError(f"{path}, line {reader.line_num}: has other fields than the header")
            yield reader.line_num, record


def _json_lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except ValueError as error:
                raise OperatorError(f"{path}, line {line}: not JSON: {error}") from None
            if not isinstance(record, dict):
                raise OperatorError(f"{path}, line {line}: not a JSON object")
            _check_names(path, line, record)
            yield line, record


def _check_names(path: Path, line: int, names: Any) -> None:
    if missing := [name for name in REQUIRED if name not in names]:
        raise OperatorError(f"{path}, line {line}: {missing[0]} is missing; a request has {', '.join(REQUIRED)}")
    if unknown := [name for name in names if name not in (*REQUIRED, *OPTIONAL)]:
        raise OperatorError(f"{path}, line {line}: {unknown[0]} is not one of {', '.join((*REQUIRED, *OPTIONAL))}")


def _row(path: Path, line: int, record: Mapping[str, Any]) -> TraceRow:
    def count(name: str, least: int, default: int | None = None) -> int:
        value = record.get(name)
        if value in (None, "") and default is not None:
            return default
        try:
            number = int(str(value))
        except ValueError:
            number = -1
        if not least <= number <= _MOST_TOKENS:
            raise OperatorError(
                f"{path}, line {line}: {name} must be a whole number from {least} to {_MOST_TOKENS:,}, got {value!r}"
            )
        return number

    try:
        at_s = float(record["arrival_s"])
    except (TypeError, ValueError):
        at_s = math.nan
    if not math.isfinite(at_s):
        raise OperatorError(f"{path}, line {line}: arrival_s must be seconds, got {record['arrival_s']!r}")
    if not record["class"]:
        raise OperatorError(f"{path}, line {line}: class is empty")
    group = str(record.get("prefix_group") or "")
    prefix_tokens = count("prefix_tokens", 0, 0)
    if bool(group) != bool(prefix_tokens):
        raise OperatorError(f"{path}, line {line}: prefix_group and prefix_tokens must be stated together")
    prompt_tokens = count("prompt_tokens", 1)
    if prefix_tokens > prompt_tokens:
        raise OperatorError(f"{path}, line {line}: prefix_tokens {prefix_tokens} exceeds prompt_tokens {prompt_tokens}")
    return TraceRow(
        at_s,
        str(record["tenant"]),
        str(record["class"]),
        prompt_tokens,
        count("output_tokens", 1),
        group,
        prefix_tokens,
        str(record.get("session") or ""),
    )
