"""What the grammar library says of a grammar that it does not take, for the one who wrote it."""

import re

MAX_REASON_CHARS = 400

_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*)\]")
_FORMAT = re.compile(r"Unknown format: (.*)")


def message_for_author(message: str) -> str:
    """In our words where it is about a keyword, else in the library's own, in one line."""
    if keywords := _KEYWORDS.search(message):
        return f"unsupported keywords: {keywords[1]}"
    if name := _FORMAT.search(message):
        return f'unsupported value of the keyword "format": {name[1]}'
    if message.startswith("oneOf constraints"):
        return 'unsupported keyword: "oneOf", where more than one of its schemas may match; "anyOf" is supported'
    if message.startswith("NoExtension"):
        return "there is no text that it allows"
    if message.startswith("Unable to determine if regex is empty"):
        return "it takes too many states to compile"
    return " ".join(message.replace("<non-verbose/>", "").split())[:MAX_REASON_CHARS]
