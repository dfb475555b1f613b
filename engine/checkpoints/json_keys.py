"""Typed access to the keys of untrusted JSON."""

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.models.config import MAX_WIDTH, UnsupportedCheckpoint


def read_json_object(path: Path, max_bytes: int) -> dict[str, Any]:
    """Parse a file of at most `max_bytes` bytes that holds one JSON object.

    Raises:
        UnsupportedCheckpoint: the file is missing, unreadable, larger, or not a JSON object.
    """
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise UnsupportedCheckpoint(f"{path.name}: {size} bytes, more than {max_bytes}")
        values = json.loads(path.read_bytes())
    except OSError as error:
        raise UnsupportedCheckpoint(f"{path.name}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, UnsupportedCheckpoint):
            raise
        raise UnsupportedCheckpoint(f"{path.name}: is not JSON ({error})") from error
    if not isinstance(values, dict):
        raise UnsupportedCheckpoint(f"{path.name}: is not a JSON object")
    return values


@dataclass(frozen=True, slots=True)
class Keys:
    """Untrusted values by key. A null counts as absent; each getter rejects a value of another type.

    `prefix` precedes a key in error messages: the file, and the object within it.
    """

    values: Mapping[str, Any]
    prefix: str

    def refuse(self, key: str, why: str) -> UnsupportedCheckpoint:
        """The error of a key."""
        return UnsupportedCheckpoint(f"{self.prefix}{shown(key)}: {why}")

    def size(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_WIDTH) -> int:
        """An integer in minimum..maximum."""
        value = self._present(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise self.refuse(key, f"{value!r:.80} is not a whole number in {minimum}..{maximum}")
        return value

    def optional_size(self, key: str, *, absent: int | None = None) -> int | None:
        """An integer; None if the file has null, `absent` if it lacks the key."""
        if key not in self.values:
            return absent
        return None if self.values[key] is None else self.size(key)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number."""
        value = self._present(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
            raise self.refuse(key, f"{value!r:.80} is not a finite number")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None if absent."""
        return None if self.values.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean."""
        value = self._present(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, f"{value!r:.80} is not true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._present(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, f"{value!r:.80} is not a string")
        return value

    def token_id(self, key: str) -> int | None:
        """A token id, or None if absent."""
        return None if self.values.get(key) is None else self.size(key, minimum=0)

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; empty if absent."""
        value = self.values.get(key)
        many = value if isinstance(value, list) else [] if value is None else [value]
        return tuple(Keys({key: item}, self.prefix).size(key, minimum=0) for item in many)

    def only(self, read: Collection[str], inert: Collection[str]) -> None:
        """Reject keys that are in neither collection, unless null, false, 0 or empty."""
        for key, value in self.values.items():
            if key not in read and key not in inert and value not in (None, False, 0, "", [], {}):
                raise self.refuse(key, f"{value!r:.80} is not understood")

    def mapping(self, key: str) -> Mapping[str, Any]:
        """An object; empty if absent."""
        value = self._present(key, {})
        if not isinstance(value, dict):
            raise self.refuse(key, f"{value!r:.80} is not an object")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        value = self._present(key, [])
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            raise self.refuse(key, f"{value!r:.80} is not a list of names")
        return tuple(value)

    def group_size(self, key: str) -> int | None:
        """Inputs of a quantisation group; None for -1: all inputs."""
        value = self._present(key, None)
        return None if value == -1 and value is not True else self.size(key)

    def _present(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.refuse(key, "is missing")
        return value


def shown(name: str) -> str:
    """An untrusted name for an error message: on one line, and at most 200 characters."""
    return name if name.isprintable() and len(name) <= 200 else ascii(name)[:200]


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False
