"""Parsers of calls whose arguments are between tags, one by one: those of GLM-4.5 and later, and of MiniMax-M2.

A value is text if the tool's schema declares it as a string, or if it is no JSON; the arguments become one JSON object.
"""

import json
from collections.abc import Container, Mapping
from typing import Any

from gateway.speech.tool_call_parsers import MAX_NAME_CHARS, NAME_CHARS, Attempt, Begun, Heard, NotACall, Reading

_SPACES = " \t\n\r"
_MAX_TAG_CHARS = MAX_NAME_CHARS + 32


def glm(names: Container[str], heard: Heard) -> Attempt:
    """`NAME<arg_key>K</arg_key><arg_value>V</arg_value>..</tool_call>`"""
    name, char = yield from _name()
    if name not in names:
        raise NotACall
    tag = yield from _tag(char)
    members = _Members(name, names, heard)
    if tag not in ("<arg_key>", "</tool_call>"):
        raise NotACall
    members.begin()
    while tag == "<arg_key>":
        key = yield from _up_to("</arg_key>")
        if (yield from _tag((yield))) != "<arg_value>":
            raise NotACall
        members.add(key, (yield from _up_to("</arg_value>")))
        tag = yield from _tag((yield))
    if tag != "</tool_call>":
        raise NotACall
    members.end()


def minimax(names: Container[str], heard: Heard) -> Attempt:
    """`<invoke name="NAME"><parameter name="K">V</parameter>..</invoke>..</minimax:tool_call>`"""
    tag = yield from _tag((yield))
    while True:
        name = _named(tag, "invoke")
        if name not in names:
            raise NotACall
        members = _Members(name, names, heard)
        members.begin()
        tag = yield from _tag((yield))
        while tag != "</invoke>":
            key = _named(tag, "parameter")
            members.add(key, (yield from _up_to("</parameter>")))
            tag = yield from _tag((yield))
        members.end()
        tag = yield from _tag((yield))
        if tag == "</minimax:tool_call>":
            return


class _Members:
    """The arguments of a call, told as the text of a JSON object. `names`: may map the tools to their schemas."""

    def __init__(self, name: str, names: Container[str], heard: Heard) -> None:
        schema = names[name] if isinstance(names, Mapping) else {}
        self._properties: Any = schema.get("properties") if isinstance(schema, Mapping) else None
        self._name, self._heard = name, heard
        self._opening = "{"

    def begin(self) -> None:
        self._heard += [Begun(self._name)]

    def add(self, key: str, value: str) -> None:
        """Add an argument with the text between its tags."""
        text = json.dumps(value.strip("\n"), ensure_ascii=False)
        if not self._is_text(key) and _is_json(value):
            text = value.strip()
        self._heard += [f"{self._opening}{json.dumps(key, ensure_ascii=False)}: {text}"]
        self._opening = ", "

    def end(self) -> None:
        self._heard += ["{}" if self._opening == "{" else "}"]

    def _is_text(self, key: str) -> bool:
        declared = self._properties.get(key) if isinstance(self._properties, Mapping) else None
        return isinstance(declared, Mapping) and declared.get("type") == "string"


def _is_json(value: str) -> bool:
    try:
        json.loads(value, parse_constant=_refused)
    except (ValueError, RecursionError):
        return False
    return True


def _refused(constant: str) -> None:
    raise ValueError(constant)


def _name() -> Reading[tuple[str, str]]:
    """A name after white space, and the character after it."""
    char = yield
    while char in _SPACES:
        char = yield
    name = ""
    while char in NAME_CHARS and len(name) < MAX_NAME_CHARS:
        name += char
        char = yield
    return name, char


def _tag(char: str) -> Reading[str]:
    """A tag after white space, of which `char` is the first character."""
    while char in _SPACES:
        char = yield
    if char != "<":
        raise NotACall
    tag = char
    while char != ">":
        char = yield
        tag += char
        if len(tag) > _MAX_TAG_CHARS:
            raise NotACall
    return tag


def _named(tag: str, kind: str) -> str:
    """NAME of `<kind name="NAME">`."""
    start, end = f"<{kind} name=", ">"
    if not tag.startswith(start):
        raise NotACall
    return tag.removeprefix(start).removesuffix(end).strip("\"'")


def _up_to(end: str) -> Reading[str]:
    """The text before a tag, which is read."""
    taken: list[str] = []
    while True:
        char = yield
        taken.append(char)
        if char == ">" and "".join(taken[-len(end) :]) == end:
            return "".join(taken[: -len(end)])
