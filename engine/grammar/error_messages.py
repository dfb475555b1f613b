"""Translates error messages of llguidance for the author of a grammar."""

import re

MAX_REASON_CHARS = 400

_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")
_FORMAT = re.compile(r"Unknown format: (.*)")


def message_for_author(message: str) -> str:
    """The message as the client gets it: names the unsupported keyword or limit where it is known, else the library's
    message in one line, cut to `MAX_REASON_CHARS`."""
    if keywords := _KEYWORDS.search(message):
        return f"unsupported keywords: {keywords[1]}"
    if name := _FORMAT.search(message):
        return f'unsupported value of the keyword "format": {name[1]}'
    if message.startswith("oneOf constraints"):
        return 'unsupported keyword: "oneOf", where more than one of its schemas may match; use "anyOf" instead'
    if message.startswith("NoExtension"):
        return "no text matches the grammar"
    if message.startswith("Unable to determine if regex is empty"):
        return "the grammar is too complex: it has too many states"
    return " ".join(message.replace("<non-verbose/>", "").split())[:MAX_REASON_CHARS]
