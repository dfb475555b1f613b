"""Parser of the calls of Gemma 4: `call:NAME{K:V,..}<tool_call|>`.

Strings are between `<|"|>`, which is a token, and keys have no quotes. All else is as in JSON.
The arguments are appended as the text of one JSON object.
"""

import json
from collections.abc import Container, Mapping

from gateway.speech.argument_types import ArgumentTypes
from gateway.speech.tool_call_parsers import (
    MAX_NAME_CHARS,
    SPACES,
    Attempt,
    Begun,
    Heard,
    NotACall,
    Reading,
    literal,
    past_spaces,
    tag,
    word,
)

CALL, CALL_END = "<|tool_call>", "<tool_call|>"
_QUOTE = '<|"|>'
_ENDS = frozenset(",}]")
_NOT_IN_KEYS = frozenset("{}[],<")
_MAX_DEPTH = 64
_UNTYPED = ArgumentTypes(None)


def gemma(names: Container[str], heard: Heard) -> Attempt:
    """One call after its marker."""
    name, char = yield from word((yield from literal("call:", (yield from past_spaces()))))
    if name not in names or (yield from _past(char)) != "{":
        raise NotACall
    heard.append(Begun(name))
    yield from _object(ArgumentTypes(names[name] if isinstance(names, Mapping) else None), heard, 1)
    if (yield from tag((yield))) != CALL_END:
        raise NotACall


def _object(types: ArgumentTypes, heard: Heard, depth: int) -> Attempt:
    """The members of an object, after its opening brace."""
    opening = "{"
    char = yield from past_spaces()
    while char != "}":
        key = yield from _key(char)
        heard.append(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
        opening = ", "
        char = yield from _value(types, key, heard, depth)
        if char == ",":
            char = yield from past_spaces()
        elif char != "}":
            raise NotACall
    heard.append("{}" if opening == "{" else "}")


def _array(heard: Heard, depth: int) -> Attempt:
    """The elements of an array, after its opening bracket."""
    heard.append("[")
    is_first, char = True, (yield from past_spaces())
    while char != "]":
        if not is_first:
            heard.append(", ")
        is_first = False
        char = yield from _value_from(char, _UNTYPED, "", heard, depth)
        if char == ",":
            char = yield from past_spaces()
        elif char != "]":
            raise NotACall
    heard.append("]")


def _key(char: str) -> Reading[str]:
    """The key that begins with `char`, and the colon after it."""
    if char == "<":
        taken: Heard = []
        yield from _string(char, taken)
        if (yield from past_spaces()) != ":":
            raise NotACall
        quoted: str = json.loads("".join(map(str, taken)))
        return quoted
    key = ""
    while char != ":":
        if char in _NOT_IN_KEYS or len(key) == MAX_NAME_CHARS:
            raise NotACall
        key += char
        char = yield
    if not key.strip():
        raise NotACall
    return key.strip()


def _value(types: ArgumentTypes, key: str, heard: Heard, depth: int) -> Reading[str]:
    return (yield from _value_from((yield from past_spaces()), types, key, heard, depth))


def _value_from(char: str, types: ArgumentTypes, key: str, heard: Heard, depth: int) -> Reading[str]:
    """The value of the argument `key` that begins with `char`. Returns the character after it that is not white space.
    What is neither quoted nor JSON of the argument's type is text."""
    if depth > _MAX_DEPTH:
        raise NotACall
    if char == "<":
        yield from _string(char, heard)
    elif char == "{":
        yield from _object(_UNTYPED, heard, depth + 1)
    elif char == "[":
        yield from _array(heard, depth + 1)
    else:
        taken: list[str] = []
        while char not in _ENDS:
            taken.append(char)
            char = yield
        written = "".join(taken).strip()
        if not written:
            raise NotACall
        heard.append(types.json_of(key, written))
        return char
    return (yield from past_spaces())


def _string(char: str, heard: Heard) -> Attempt:
    """A string between quotes, of which `char` is the first character. It is appended as it arrives."""
    held = yield from literal(_QUOTE, char)
    heard.append('"')
    while held != _QUOTE:
        if _QUOTE.startswith(held):
            held += yield
        else:
            heard.append(json.dumps(held[0], ensure_ascii=False)[1:-1])
            held = held[1:] or (yield)
    heard.append('"')


def _past(char: str) -> Reading[str]:
    """The first character from `char` on that is not white space."""
    return (yield from past_spaces()) if char in SPACES else char
