"""CSV (RFC 4180) for people who open it in a spreadsheet, where a cell that begins like a formula is run as one."""

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
"""First characters by which a program takes a cell for a formula (OWASP, CSV Injection), with full-width forms."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, head: bool = True) -> str:
    """A head and a line for each row: its values by `columns`, empty where it has none. Every cell is guarded. Without
    `head`: a further part of a file."""
    text = io.StringIO(newline="")
    # Only characters of the end of a line are quoted, and a bare CR ends one, too, for who reads it.
    writer = csv.writer(text, lineterminator="\r\n")
    if head:
        writer.writerow([guarded(name) for name in columns])
    writer.writerows([guarded(row.get(name, "")) for name in columns] for row in rows)
    return text.getvalue()


def guarded(value: Any) -> Any:
    """The value, with a quote before it where it is text that would be run. A number stays one, as text too."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
