"""Prompts: words of random length, or prompts from a file."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from gateway.errors import OperatorError
from gateway.tools.bench.lengths import LogNormal

_TEXT = """
    time year people way day man thing woman life child world school state family student group country problem
    hand part place case week company system program question work number night point home water room mother area
    money story fact month lot right study book eye job word business issue side kind head house service friend
    father
"""
_WORDS = tuple(_TEXT.split())


class PromptsUnreadable(OperatorError):
    """The prompt file is missing or invalid."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`messages`: None for a plain text prompt."""

    text: str
    messages: tuple[dict[str, Any], ...] | None
    max_tokens: int


def synthetic(words: LogNormal, output_tokens: LogNormal, rng: random.Random) -> Iterator[Prompt]:
    """Endless prompts. A word is roughly a token. Each has a random prefix, so no prefix cache applies."""
    while True:
        text = " ".join(rng.choice(_WORDS) for _ in range(words.draw(rng)))
        yield Prompt(f"{rng.getrandbits(32):08x} {text}", None, output_tokens.draw(rng))


def from_file(path: Path, output_tokens: LogNormal, rng: random.Random) -> Iterator[Prompt]:
    """Endless prompts: the file's prompts, shuffled and repeated.

    Each line is `{"prompt": "..."}` or `{"messages": [...]}`, with an optional `max_tokens`, or plain text.

    Raises:
        PromptsUnreadable: the file is missing or empty, or a line is invalid.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsUnreadable(f"{path} cannot be read ({type(error).__name__})") from None
    if not lines:
        raise PromptsUnreadable(f"{path} has no prompt in it")
    stated = [_parse(line, f"{path}, prompt {number}") for number, line in enumerate(lines, 1)]
    rng.shuffle(stated)
    return _drawn(stated, output_tokens, rng)


def _drawn(
    stated: Sequence[tuple[str, tuple[dict[str, Any], ...] | None, int | None]],
    output_tokens: LogNormal,
    rng: random.Random,
) -> Iterator[Prompt]:
    for text, messages, max_tokens in cycle(stated):
        yield Prompt(text, messages, max_tokens or output_tokens.draw(rng))


def _parse(line: str, where: str) -> tuple[str, tuple[dict[str, Any], ...] | None, int | None]:
    if not line.lstrip().startswith("{"):
        return line, None, None
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        raise PromptsUnreadable(f"{where} is not JSON") from None
    text, messages, max_tokens = value.get("prompt"), value.get("messages"), value.get("max_tokens")
    if max_tokens is not None and not (type(max_tokens) is int and max_tokens > 0):
        raise PromptsUnreadable(f"{where}: max_tokens is a whole number above 0")
    if isinstance(text, str) and messages is None:
        return text, None, max_tokens
    if text is None and isinstance(messages, list) and messages and all(isinstance(each, dict) for each in messages):
        return "", tuple(messages), max_tokens
    raise PromptsUnreadable(f'{where} has neither "prompt", a text, nor "messages", a list')
