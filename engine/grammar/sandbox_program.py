"""The program of the sandbox process that `engine.grammar.sandbox` starts: compiles grammars to find out what they
take.

It is run by its path and imports nothing of the engine, so that it starts fast and stays small. A message is its length
in four bytes, big-endian, and JSON. The first message is the setup: `tokenizer` (the content of `tokenizer.json`),
`vocab_size`, `eos_token_ids`, `memory_bytes`, `seconds`, `idle_seconds`; the answer is `{}`. Each later one is a
grammar, `kind` and `source`; the answer is `{"grammar": text, "bytes": n}` with the grammar in llguidance's own format
and its memory once compiled (null where that cannot be measured), or `{"refused": reason}`. The program exits when its
input ends, or after `idle_seconds` without a message.
"""

import ctypes
import json
import os
import resource
import select
import signal
import struct
import sys
from typing import IO, Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

COMPACT = {
    "item_separator": ",",
    "key_separator": ":",
    "whitespace_flexible": False,
    "coerce_one_of": False,
    "lenient": False,
}
"""Options of llguidance's JSON schemas. No optional white space, with which a model could fill any number of tokens."""

_OPTIONS_KEY = "x-guidance"
"""The keyword by which a schema could set llguidance's options itself; refused."""

_PUNCTUATION = frozenset(r"\.+*?()|[]{}^$#&-~/")
_HEADER = struct.Struct(">I")


def limits() -> LLParserLimits:
    """Limits of a compiled grammar: about 60 MB of lexer states; as many symbols as the largest accepted schema needs;
    at one position as many parser items as 4,000 optional properties need, at four each."""
    return LLParserLimits(
        max_lexer_states=30_000, max_grammar_size=200_000, max_items_in_row=16_384, verbose_errors=False
    )


def open_tokenizer(tokenizer: str, vocab_size: int, eos_token_ids: list[int]) -> LLTokenizer:
    """llguidance's tokenizer. `n_vocab` is the width of the logits, which may exceed the number of tokens."""
    return LLTokenizer(tokenizer, n_vocab=vocab_size, eos_token=eos_token_ids)


def translate(kind: str, source: str) -> str:
    """A grammar in llguidance's own format. `kind` is a `GrammarKind`.

    Raises:
        ValueError: the grammar cannot be translated; the message is for its author.
    """
    match kind:
        case "json_schema":
            return _from_schema(json.loads(source))
        case "choice":
            return LLMatcher.grammar_from_regex("|".join(_literally(text) for text in json.loads(source)))
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case _:
            return LLMatcher.grammar_from_lark(any_to_lark(source))


def _from_schema(schema: Any) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    if _OPTIONS_KEY in schema:
        raise ValueError(f'unsupported keyword: "{_OPTIONS_KEY}"')
    return LLMatcher.grammar_from_json_schema(schema, overrides=COMPACT)  # type: ignore[arg-type]


def _literally(text: str) -> str:
    return "".join("\\" + char if char in _PUNCTUATION else char for char in text)


def fault_of(matcher: LLMatcher) -> str | None:
    """The error of a freshly compiled grammar: it was rejected, or no text matches it. None if it is usable."""
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error() if matcher.is_error() else None


def _answer(tokenizer: LLTokenizer, kind: str, source: str) -> dict[str, str | int | None]:
    try:
        grammar = translate(kind, source)
    except Exception as error:  # the translators raise any type
        return {"refused": str(error) or type(error).__name__}
    before = allocated_bytes()
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits())
    fault = fault_of(matcher)
    if fault is not None:
        return {"refused": fault}
    after = allocated_bytes()
    size_bytes = None if before is None or after is None else max(after - before, 0)
    del matcher
    return {"grammar": grammar, "bytes": size_bytes}


def receive(stream: IO[bytes]) -> Any:
    """The next message; None at the end of the stream."""
    header = stream.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    return json.loads(stream.read(_HEADER.unpack(header)[0]))


def encode(message: object) -> bytes:
    """A message with its length."""
    body = json.dumps(message).encode()
    return _HEADER.pack(len(body)) + body


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def allocated_bytes() -> int | None:
    """Bytes that this process has allocated with malloc, which llguidance uses; None where the C library keeps no
    count."""
    info = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if info is None:
        return None
    info.restype = _MallocInfo
    counts = info()
    return int(counts.uordblks) + int(counts.hblkhd)


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to the whole process group by a terminal
    os.nice(5)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    setup = receive(source)
    if setup is None:
        return
    tokenizer = open_tokenizer(setup["tokenizer"], setup["vocab_size"], setup["eos_token_ids"])
    resource.setrlimit(resource.RLIMIT_AS, (setup["memory_bytes"], setup["memory_bytes"]))
    answer: dict[str, str | int | None] = {}
    while True:
        sink.write(encode(answer))
        sink.flush()
        if not select.select([source], [], [], setup["idle_seconds"])[0]:
            return
        task = receive(source)
        if task is None:
            return
        signal.alarm(setup["seconds"])  # ends this process if its parent is gone
        answer = _answer(tokenizer, task["kind"], task["source"])
        signal.alarm(0)


if __name__ == "__main__":
    _main()
