"""Strict readers of JSON values: each knows its path, so that an error names the field exactly.

Strict means that JSON types are taken as they stand: "5" is not 5, true is not 1, 5.0 is not an integer. A null
member counts as absent, as in the OpenAI API.
"""

from collections.abc import Mapping, Sequence

from gateway.http.errors import APIError, invalid

MAX_NAME_CHARS = 64

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "an integer", float: "a number"}


class Fields:
    """The members of one JSON object. They are taken by name; `finish` refuses those that nobody took.

    Raises:
        APIError: 400, from every method, naming the member.
    """

    __slots__ = ("_path", "_values")

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong_type(path or None, "an object", value)
        self._values: dict[str, object] = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def take(self, name: str) -> object:
        """The member as it stands, or None."""
        return self._values.pop(name, None)

    def string(self, name: str, max_chars: int | None = None) -> str | None:
        value = self.take(name)
        if value is None:
            return None
        text = as_string(value, self.path(name))
        if max_chars is not None and len(text) > max_chars:
            raise too_long(self.path(name), max_chars, len(text))
        return text

    def required_string(self, name: str, max_chars: int | None = None) -> str:
        value = self.string(name, max_chars)
        if not value:
            raise missing(self.path(name))
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise wrong_type(self.path(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.take(name)
        return None if value is None else as_integer(value, self.path(name), low, high)

    def number(self, name: str, default: float) -> float:
        """Its range is `SamplingParams`' affair."""
        value = self.take(name)
        return default if value is None else as_number(value, self.path(name))

    def array(self, name: str, max_items: int) -> list[object] | None:
        value = self.take(name)
        return None if value is None else as_array(value, self.path(name), max_items)

    def nested(self, name: str) -> "Fields | None":
        value = self.take(name)
        return None if value is None else Fields(value, self.path(name))

    def rest(self) -> dict[str, object]:
        """All members not yet taken."""
        rest, self._values = self._values, {}
        return rest

    def finish(self, refused: Mapping[str, Sequence[object]]) -> None:
        """Refuse what is left by name.

        `refused` are parameters that the API knows and that this server cannot honour, each with the values that
        ask for nothing. Everything else is unknown.
        """
        for name, value in self._values.items():
            if name in refused:
                if value is not None and not any(_same(value, neutral) for neutral in refused[name]):
                    raise invalid(self.path(name), f"{name} is not supported here.", "unsupported_parameter")
            else:
                path = self.path(name[:MAX_NAME_CHARS])
                raise invalid(path, f"Unknown parameter: {path}.", "unknown_parameter")


def as_string(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    return value


def as_integer(value: object, path: str, low: int, high: int) -> int:
    if type(value) is not int:
        raise wrong_type(path, "an integer", value)
    if not low <= value <= high:
        raise invalid(path, f"{path} must be in [{low}, {high}], got {value}.")
    return value


def as_number(value: object, path: str) -> float:
    if type(value) is not int and type(value) is not float:
        raise wrong_type(path, "a number", value)
    return float(value)


def as_array(value: object, path: str, max_items: int) -> list[object]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    if len(value) > max_items:
        raise invalid(path, f"{path} takes at most {max_items} items, got {len(value)}.")
    return value


def wrong_type(path: str | None, wanted: str, value: object) -> APIError:
    got = "null" if value is None else _KINDS[type(value)]
    return invalid(path, f"{path or 'The body'} must be {wanted}, got {got}.", "invalid_type")


def too_long(path: str, most: int, chars: int) -> APIError:
    """In OpenAI's words, which clients look for."""
    message = f"Invalid '{path}': string too long. Expected a string with maximum length {most}, got {chars} instead."
    return invalid(path, message, "string_above_max_length")


def missing(path: str) -> APIError:
    return invalid(path, f"Missing required parameter: {path}.", "missing_required_parameter")


def _same(value: object, neutral: object) -> bool:
    """Equal without Python's 1 == True."""
    return type(value) is type(neutral) and value == neutral
