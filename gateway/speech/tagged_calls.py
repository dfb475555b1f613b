"""Parsers of calls whose arguments are between tags, one by one: those of GLM-4.5 and later, of MiniMax-M2, and of
Qwen3-Coder and Qwen3.5. See `gateway.speech.tagged_values`."""

from collections.abc import Container

from gateway.speech.tagged_values import Members
from gateway.speech.tool_call_parsers import MAX_NAME_CHARS, Attempt, Heard, NotACall, Reading, past_spaces, tag, word

_NOT_IN_KEYS = frozenset("< \t\n\r")


def glm(names: Container[str], heard: Heard) -> Attempt:
    """`NAME<arg_key>K</arg_key><arg_value>V</arg_value>..</tool_call>`"""
    name, char = yield from word((yield from past_spaces()))
    if name not in names:
        raise NotACall
    found = yield from tag(char)
    members = Members(name, names, heard)
    if found not in ("<arg_key>", "</tool_call>"):
        raise NotACall
    members.begin()
    while found == "<arg_key>":
        key = yield from _up_to("</arg_key>")
        if (yield from tag((yield))) != "<arg_value>":
            raise NotACall
        found = yield from members.value(key, "</arg_value>", ("<arg_key>", "</tool_call>"))
    members.end()


def minimax(names: Container[str], heard: Heard) -> Attempt:
    """`<invoke name="NAME"><parameter name="K">V</parameter>..</invoke>..</minimax:tool_call>`"""
    found = yield from tag((yield))
    while True:
        yield from _invoked(names, heard, _attribute(found, "<invoke name="), "<parameter name=", "</invoke>")
        found = yield from tag((yield))
        if found == "</minimax:tool_call>":
            return


def qwen_xml(names: Container[str], heard: Heard) -> Attempt:
    """`<function=NAME><parameter=K>V</parameter>..</function></tool_call>`; one function or several."""
    yield from _functions(names, heard, (yield from tag((yield))))


def qwen_xml_function(names: Container[str], heard: Heard) -> Attempt:
    """As `qwen_xml`, after `<function=`: Qwen3-Coder may leave the tag before it out."""
    yield from _functions(names, heard, "<function=" + (yield from _up_to(">", MAX_NAME_CHARS)) + ">")


def _functions(names: Container[str], heard: Heard, found: str) -> Attempt:
    """`found`: the tag that has been read."""
    while True:
        yield from _invoked(names, heard, _attribute(found, "<function="), "<parameter=", "</function>")
        found = yield from tag((yield))
        if found == "</tool_call>":
            return


def _invoked(names: Container[str], heard: Heard, name: str, parameter: str, end: str) -> Attempt:
    """The arguments of a call, each as `PARAMETER K>V</parameter>`, up to the tag `end`."""
    if name not in names:
        raise NotACall
    members = Members(name, names, heard)
    members.begin()
    found = yield from tag((yield))
    while found != end:
        key = _attribute(found, parameter)
        if not key or not _NOT_IN_KEYS.isdisjoint(key):
            raise NotACall
        found = yield from members.value(key, "</parameter>", (parameter, end))
        if found == parameter:
            found += (yield from _up_to(">", MAX_NAME_CHARS)) + ">"
    members.end()


def _attribute(found: str, start: str) -> str:
    """NAME of a tag that begins with `start`, as `<invoke name="NAME">` or `<function=NAME>`."""
    if not found.startswith(start):
        raise NotACall
    return found.removeprefix(start).removesuffix(">").strip("\"'")


def _up_to(end: str, longest: int | None = None) -> Reading[str]:
    """The text before `end`, which is read. `longest`: the most characters of it."""
    taken: list[str] = []
    while True:
        char = yield
        taken.append(char)
        if char == end[-1] and "".join(taken[-len(end) :]) == end:
            return "".join(taken[: -len(end)])
        if len(taken) == longest:
            raise NotACall
