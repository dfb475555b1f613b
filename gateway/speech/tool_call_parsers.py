"""Parsers of the formats in which models write tool calls.

A parser (`Attempt`) is a coroutine that receives the text after a format's marker, character by character, and appends
its results to `Heard`. It returns after the last call of the marker, and raises `NotACall` for any other text.
"""

import json
from collections.abc import Callable, Container, Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gateway.speech.json_text import JsonText, NotJson

SPACES = " \t\n\r"
_ARGUMENTS = ("arguments", "parameters")
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
MAX_NAME_CHARS = 256
_MAX_TAG_CHARS = MAX_NAME_CHARS + 32


class NotACall(Exception):
    """The text is not a tool call."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The start of a call of this tool. Its arguments follow as the text of one JSON object."""

    name: str


Heard = list["Begun | str"]
"""Results of a parser: the start of each call, followed by parts of its arguments. After an empty part, what was read
before is no text, even if the parser fails later."""

T = TypeVar("T")
Reading = Generator[None, str, T]
Attempt = Reading[None]


NewAttempt = Callable[[Container[str], Heard], Attempt]
"""Makes a parser, from the names of the declared tools."""


@dataclass(frozen=True, slots=True)
class Form:
    """A format. `attempts`: the parsers by the markers after which they begin. `closing`: the texts that may come after
    the last call's arguments, in order, and may be missing at the end of an answer. `bare`: the parser of an answer
    that starts with a brace, which may be a call without a marker."""

    attempts: Mapping[str, NewAttempt]
    closing: tuple[str, ...] = ()
    bare: NewAttempt | None = None


def hermes(names: Container[str], heard: Heard) -> Attempt:
    """`{"name": .., "arguments": {..}}</tool_call>`"""
    yield from _object(names, heard, (yield from past_spaces()))
    char = yield from past_spaces()
    for expected in "</tool_call>":
        if char != expected:
            raise NotACall
        if expected != ">":
            char = yield


def llama(names: Container[str], heard: Heard) -> Attempt:
    """`{"name": .., "parameters": {..}}`, several separated by semicolons."""
    while True:
        yield from _object(names, heard, (yield from past_spaces()))
        if (yield from past_spaces()) != ";":
            raise NotACall


def mistral(names: Container[str], heard: Heard) -> Attempt:
    """`[{..}, {..}]`, or `name[ARGS]{..}`, in some versions `name[CALL_ID]..[ARGS]{..}`."""
    char = yield from past_spaces()
    if char == "[":
        yield from _array(names, heard)
        return
    name, char = yield from word(char)
    if name not in names:
        raise NotACall
    if char == "[":
        found = yield from _bracketed()
        if found == "[CALL_ID]":
            yield from _until("[")
            found = yield from _bracketed()
        if found != "[ARGS]":
            raise NotACall
        char = yield from past_spaces()
    yield from arguments_of(name, heard, char)


def forced(names: Container[str], heard: Heard) -> Attempt:
    """The output of the grammar of `gateway.speech.forced`: one object, or an array of objects."""
    char = yield from past_spaces()
    if char == "[":
        yield from _array(names, heard)
    else:
        yield from _object(names, heard, char)


def _array(names: Container[str], heard: Heard) -> Attempt:
    """Calls in an array, after its opening bracket."""
    while True:
        yield from _object(names, heard, (yield from past_spaces()))
        char = yield from past_spaces()
        if char == "]":
            return
        if char != ",":
            raise NotACall


def _object(names: Container[str], heard: Heard, char: str) -> Attempt:
    """One call as an object that starts with `char`. The call starts once its name and its arguments are found; other
    members, such as an id, are skipped."""
    name = arguments = None
    if char != "{":
        raise NotACall
    while True:
        key = yield from _string((yield from past_spaces()))
        if (yield from past_spaces()) != ":":
            raise NotACall
        char = yield from past_spaces()
        if key == "name" and name is None:
            name = yield from _string(char)
            if name not in names:
                raise NotACall
            if arguments is not None:
                heard += [Begun(name), arguments]
            char = yield from past_spaces()
        elif key in _ARGUMENTS and arguments is None:
            if name is None:
                arguments = yield from _whole_object(char)
            else:
                arguments = ""
                yield from arguments_of(name, heard, char)
            char = yield from past_spaces()
        else:
            char = yield from _skipped(char)
        if char == "}":
            break
        if char != ",":
            raise NotACall
    if name is None:
        raise NotACall
    if arguments is None:
        heard += [Begun(name), "{}"]


def arguments_of(name: str, heard: Heard, char: str) -> Attempt:
    """The arguments of a call, appended as they arrive."""
    if char != "{":
        raise NotACall
    text = JsonText()
    heard.append(Begun(name))
    while True:
        _take(text, char)
        heard.append(char)
        if text.ended:
            return
        char = yield


def _whole_object(char: str) -> Reading[str]:
    """The text of a complete object."""
    if char != "{":
        raise NotACall
    return (yield from _text_of(char))


def _string(char: str) -> Reading[str]:
    if char != '"':
        raise NotACall
    value: str = json.loads((yield from _text_of(char)))
    return value


def _skipped(char: str) -> Reading[str]:
    """Skip any value. Returns the next character that is not whitespace."""
    if char in '{["':
        yield from _text_of(char)
        return (yield from past_spaces())
    if char in ",}":
        raise NotACall
    text = JsonText()
    _take(text, "[")
    while char not in ",}":
        _take(text, char)
        char = yield
    _take(text, "]")
    return char


def _text_of(char: str) -> Reading[str]:
    """The text of an object, an array or a string that starts with `char`."""
    text, taken = JsonText(), []
    while True:
        _take(text, char)
        taken.append(char)
        if text.ended:
            return "".join(taken)
        char = yield


def _bracketed() -> Reading[str]:
    """A word in brackets, after the opening bracket."""
    return "[" + (yield from _until("]")) + "]"


def _until(end: str) -> Reading[str]:
    """Up to `MAX_NAME_CHARS` name characters, ended by `end`."""
    taken = ""
    while (char := (yield)) in _NAME_CHARS and len(taken) < MAX_NAME_CHARS:
        taken += char
    if char != end:
        raise NotACall
    return taken


def past_spaces() -> Reading[str]:
    """The next character that is not whitespace."""
    while (char := (yield)) in SPACES:
        pass
    return char


def word(char: str) -> Reading[tuple[str, str]]:
    """Up to `MAX_NAME_CHARS` name characters, of which `char` is the first, and the character after them."""
    taken = ""
    while char in _NAME_CHARS and len(taken) < MAX_NAME_CHARS:
        taken += char
        char = yield
    return taken, char


def literal(text: str, char: str) -> Reading[str]:
    """Read the text, of which `char` is the first character. Returns the character after it."""
    for expected in text:
        if char != expected:
            raise NotACall
        char = yield
    return char


def tag(char: str) -> Reading[str]:
    """A tag `<..>` after white space, of which `char` is the first character."""
    while char in SPACES:
        char = yield
    if char != "<":
        raise NotACall
    taken = char
    while char != ">":
        char = yield
        taken += char
        if len(taken) > _MAX_TAG_CHARS:
            raise NotACall
    return taken


def _take(text: JsonText, char: str) -> None:
    try:
        text.take(char)
    except NotJson:
        raise NotACall from None
