"""Strict readers of JSON values. Each reader knows its path, so an error names the exact field.

Readers never convert between JSON types: "5" is not 5, true is not 1, 5.0 is not an integer. A null member counts as
absent, as in the OpenAI API. The error messages are OpenAI's: clients and proxies match on their phrases.
"""

from collections.abc import Iterable, Mapping, Sequence

from gateway.http.errors import APIError, invalid

MAX_NAME_CHARS = 64
"""Characters of an unknown member's name, or of a value, that an error repeats."""

_KINDS = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", int: "an integer", float: "a number"}


class Fields:
    """The members of one JSON object, taken by name. `finish` rejects the members that were not taken.

    Raises:
        APIError: 400 from every method, naming the member.
    """

    __slots__ = ("_path", "_values")

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise wrong_type(path or None, "an object", value)
        self._values: dict[str, object] = dict(value)
        self._path = path

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def unstated(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that are absent. Call it before they are taken."""
        return frozenset(name for name in names if self._values.get(name) is None)

    def take(self, name: str) -> object:
        """The member's value of any type, or None."""
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
        """A number of any range: `SamplingParams` checks the range."""
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
        """Reject the members that were not taken.

        `refused`: parameters of the API that this server does not support, each with its neutral values, which are
        accepted. All other members are unknown.
        """
        for name, value in self._values.items():
            if name in refused:
                if value is not None and not any(_same(value, neutral) for neutral in refused[name]):
                    raise unsupported(self.path(name))
            else:
                path = self.path(name[:MAX_NAME_CHARS])
                raise invalid(path, f"Unknown parameter: '{path}'.", "unknown_parameter")


def as_string(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(path, "a string", value)
    return value


def as_integer(value: object, path: str, low: int, high: int) -> int:
    if type(value) is not int:
        raise wrong_type(path, "an integer", value)
    if not low <= value <= high:
        raise _out_of_range(path, value, low, high)
    return value


def as_number(value: object, path: str) -> float:
    if type(value) is not int and type(value) is not float:
        raise wrong_type(path, "a number", value)
    return float(value)


def as_array(value: object, path: str, max_items: int) -> list[object]:
    if not isinstance(value, list):
        raise wrong_type(path, "an array", value)
    if len(value) > max_items:
        raise array_too_long(path, max_items, len(value))
    return value


def wrong_type(path: str | None, expected: str, value: object) -> APIError:
    """`expected`: the JSON type with its article, such as "an integer"."""
    got = "null" if value is None else f"{_KINDS[type(value)]} instead"
    field = "the request body" if path is None else f"'{path}'"
    return invalid(path, f"Invalid type for {field}: expected {expected}, but got {got}.", "invalid_type")


def missing(path: str) -> APIError:
    return invalid(path, f"Missing required parameter: '{path}'.", "missing_required_parameter")


def unsupported(path: str) -> APIError:
    """A parameter that the API defines and this server does not implement."""
    return invalid(path, f"Unsupported parameter: '{path}' is not supported by this server.", "unsupported_parameter")


def unsupported_value(path: str, value: object, supported: Iterable[str]) -> APIError:
    """A string that is none of the `supported` values."""
    *others, last = (f"'{each}'" for each in supported)
    values = f"{', '.join(others)} and {last}" if others else last
    return invalid(
        path, f"Invalid value for '{path}': '{str(value)[:MAX_NAME_CHARS]}'. Supported values are: {values}."
    )


def only_value(path: str, value: str, supported: str) -> APIError:
    """A string that is not the one supported value."""
    return invalid(
        path, f"Invalid value for '{path}': '{value[:MAX_NAME_CHARS]}'. The supported value is '{supported}'."
    )


def too_long(path: str, max_chars: int, chars: int) -> APIError:
    message = (
        f"Invalid '{path}': string too long. Expected a string with maximum length {max_chars}, but got a string with "
        f"length {chars} instead."
    )
    return invalid(path, message, "string_above_max_length")


def wrong_length(path: str, max_chars: int) -> APIError:
    """A string that is empty or over `max_chars` characters."""
    return invalid(path, f"Invalid '{path}': expected a string of 1 to {max_chars} characters.")


def wrong_pattern(path: str, allowed: str) -> APIError:
    """A string with other characters than `allowed`, or of another length."""
    return invalid(path, f"Invalid '{path}': string does not match pattern. Expected {allowed}.")


def array_too_long(path: str, max_items: int, items: int) -> APIError:
    return invalid(
        path,
        f"Invalid '{path}': array too long. Expected an array with maximum length {max_items}, but got an array with "
        f"length {items} instead.",
    )


def empty_array(path: str) -> APIError:
    return invalid(
        path,
        f"Invalid '{path}': empty array. Expected an array with minimum length 1, but got an empty array instead.",
    )


def empty_string(path: str) -> APIError:
    return invalid(
        path,
        f"Invalid '{path}': empty string. Expected a string with minimum length 1, but got an empty string instead.",
    )


def _out_of_range(path: str, value: int, low: int, high: int) -> APIError:
    bound = f"below minimum value. Expected a value >= {low}"
    if value > high:
        bound = f"above maximum value. Expected a value <= {high}"
    return invalid(path, f"Invalid '{path}': integer {bound}, but got {value} instead.")


def _same(value: object, neutral: object) -> bool:
    """Equality that distinguishes 1 from True."""
    return type(value) is type(neutral) and value == neutral
