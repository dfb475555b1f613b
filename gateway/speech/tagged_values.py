"""Arguments whose values are between tags, one by one, as the text of a JSON object."""

import json
from collections.abc import Callable, Container, Mapping

from gateway.speech.argument_types import ArgumentTypes
from gateway.speech.tool_call_parsers import SPACES, Begun, Heard, Reading

_MAX_SPACES = 64
"""White space between a value's closing tag and the tag that follows."""


class Members:
    """The arguments of one call. A value that the tool's schema declares as a string, and as nothing else, is appended
    as it arrives; the others are appended whole. `names`: may map the tools to their schemas."""

    def __init__(self, name: str, names: Container[str], heard: Heard) -> None:
        self._types = ArgumentTypes(names[name] if isinstance(names, Mapping) else None)
        self._name, self._heard = name, heard
        self._opening = "{"

    def begin(self) -> None:
        self._heard += [Begun(self._name)]

    def value(self, key: str, end: str, followers: tuple[str, ...]) -> Reading[str]:
        """Read the value up to its closing tag `end`. That tag counts only where white space and one of `followers`
        come after it; elsewhere it is part of the value. Returns the follower, which has been read."""
        start = f"{self._opening}{json.dumps(key, ensure_ascii=False)}: "
        self._opening = ", "
        if self._types.of(key) == {"string"}:
            self._heard += [f'{start}"']
            follower = yield from _up_to(end, followers, self._append)
            self._heard += ['"']
            return follower
        taken: list[str] = []
        follower = yield from _up_to(end, followers, taken.append)
        self._heard += [start + self._types.json_of(key, "".join(taken))]
        return follower

    def end(self) -> None:
        self._heard += ["{}" if self._opening == "{" else "}"]

    def _append(self, char: str) -> None:
        self._heard += [json.dumps(char, ensure_ascii=False)[1:-1]]


def _up_to(end: str, followers: tuple[str, ...], take: Callable[[str], None]) -> Reading[str]:
    """Pass the characters before `end` to `take`, but for one line break at either end of them. Returns the
    follower."""
    held = yield
    if held == "\n":
        held = yield
    while True:
        match _closing(held, end, followers):
            case str() as follower:
                return follower
            case True:
                held += yield
            case _:
                take(held[0])
                held = held[1:] or (yield)


def _closing(held: str, end: str, followers: tuple[str, ...]) -> str | bool:
    """The follower, if the text is the end of a value as a whole; else whether it may become one."""
    text = held.removeprefix("\n")
    if len(text) <= len(end):
        return end.startswith(text)
    if not text.startswith(end):
        return False
    behind = text[len(end) :]
    tag = behind.lstrip(SPACES)
    if tag in followers:
        return tag
    return len(behind) - len(tag) <= _MAX_SPACES and any(each.startswith(tag) for each in followers)
