"""One change of a `turnpike.toml` that leaves its other lines as they are."""

import json
import os
import tempfile
import tomllib
from pathlib import Path

from gateway.errors import OperatorError


def set_in_table(path: Path, table: str, key: str, value: str) -> None:
    """Set a text under `[table]` of a file, which is created if missing. The change is atomic.

    Raises:
        OperatorError: the file is not TOML, has another form, or cannot be written. The message has the line to add.
    """
    line = f"{json.dumps(key)} = {json.dumps(value, ensure_ascii=False)}"
    advice = f"add this line below [{table}]: {line}"
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        wanted = tomllib.loads(text)
        if key in wanted.get(table, {}):
            raise OperatorError(f"{path} has {key} below [{table}] already: change it there")
        wanted.setdefault(table, {})[key] = value
        changed = _with_line(text, table, line)
        if tomllib.loads(changed) != wanted:
            raise OperatorError(f"{path} has a form that is not edited: {advice}")
        _replace(path, changed)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise OperatorError(f"{path} is not TOML: {advice}") from None
    except (OSError, TypeError, AttributeError) as error:
        reason = getattr(error, "strerror", None) or "it has another form"
        raise OperatorError(f"{path} cannot be changed ({reason}): {advice}") from error


def _with_line(text: str, table: str, line: str) -> str:
    lines = text.splitlines()
    header = f"[{table}]"
    place = next((i for i, each in enumerate(lines) if each.partition("#")[0].strip() == header), None)
    if place is None:
        lines += ([""] if lines else []) + [header, line]
    else:
        lines.insert(place + 1, line)
    return "\n".join(lines) + "\n"


def _replace(path: Path, text: str) -> None:
    """Write a file in one step, with the mode that it had, or readable by its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
