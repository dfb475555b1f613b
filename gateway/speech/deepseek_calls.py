"""Parsers of the calls of DeepSeek-V3 and V3.1, whose markers are tokens.

V3 and R1 write ``function<｜tool▁sep｜>NAME``, a line break and the arguments as a Markdown block of JSON; V3.1 writes
`NAME<｜tool▁sep｜>` and the arguments.
"""

from collections.abc import Container

from gateway.speech.tool_call_parsers import (
    SPACES,
    Attempt,
    Heard,
    NotACall,
    arguments_of,
    literal,
    past_spaces,
    tag,
    word,
)

CALLS, CALL = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"
CALL_END, CALLS_END = "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"
FENCE = "```"
_SEPARATOR = "<｜tool▁sep｜>"
_TYPE = "function"
"""The only type of tools that V3 writes."""


def deepseek(names: Container[str], heard: Heard) -> Attempt:
    """Calls after the marker of them all."""
    if (yield from tag((yield))) != CALL:
        raise NotACall
    yield from deepseek_call(names, heard)


def deepseek_call(names: Container[str], heard: Heard) -> Attempt:
    """Calls after the marker of the first one."""
    while True:
        yield from _call(names, heard)
        found = yield from tag((yield))
        if found == CALLS_END:
            return
        if found != CALL:
            raise NotACall


def _call(names: Container[str], heard: Heard) -> Attempt:
    name, char = yield from word((yield from past_spaces()))
    if (yield from tag(char)) != _SEPARATOR:
        raise NotACall
    char = yield from past_spaces()
    is_fenced = char != "{"
    if is_fenced:
        if name != _TYPE:
            raise NotACall
        name, char = yield from word(char)
        char = yield from literal(FENCE, (yield from past_spaces()) if char in SPACES else char)
        char = yield from past_spaces() if char in SPACES else literal("json", char)
        char = (yield from past_spaces()) if char in SPACES else char
    if name not in names:
        raise NotACall
    yield from arguments_of(name, heard, char)
    char = yield from past_spaces()
    if is_fenced:
        char = yield from literal(FENCE, char)
        char = (yield from past_spaces()) if char in SPACES else char
    if (yield from tag(char)) != CALL_END:
        raise NotACall
    heard += [""]
