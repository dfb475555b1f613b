"""Formats an answer as Anthropic's message of content blocks.

**Usage.** `input_tokens` excludes tokens read from the prefix cache. The prompt's length is the sum of `input_tokens`,
`cache_read_input_tokens` and `cache_creation_input_tokens`. The last is always 0: writing to the cache is free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic_core import from_json

from engine.request import FinishReason
from gateway.formats.anthropic.stream import BlockStream, event
from gateway.generation.response_format import ResponseMeta
from gateway.generation.usage import UsageTotal
from gateway.http.anthropic_errors import anthropic_error
from gateway.http.errors import APIError
from gateway.speech.output_parser import TOOL_CALLS, ParsedDelta
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Reasoning, Text

_TIERS = {"priority": "priority", "default": "standard", "flex": "standard"}
"""OpenAI's service tiers -> Anthropic's."""

INVALID_JSON = "INVALID_JSON"
"""Member that has a call's arguments when they are not valid JSON, as in Anthropic's API."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The request's options. `is_cut`: the context window allows fewer than `max_tokens` tokens."""

    prompt_tokens: int
    stop_sequences: Sequence[str]
    is_cut: bool
    shows_thinking: bool


class MessagesFormatter:
    """Sends `message_start` with the first delta, which has the number of cached prompt tokens."""

    def __init__(self, header: ResponseMeta, terms: Terms) -> None:
        self._header = header
        self._terms = terms
        self._blocks = BlockStream(terms.shows_thinking)
        self._begun = False
        self._last: ParsedDelta | None = None

    def start(self) -> bytes:
        return b""

    def events(self, output: ParsedDelta) -> bytes:
        events = [self._blocks.events(piece) for piece in output.pieces]
        if not self._begun:
            self._begun = True
            counts = _input_counts(self._terms.prompt_tokens, output.delta.cached_tokens) | {"output_tokens": 0}
            usage = counts | self._tier()
            events.insert(0, event("message_start", {"message": self._message([], None, None, usage)}))
        self._last = output
        return b"".join(events)

    def end(self, usage: UsageTotal) -> bytes:
        assert self._last is not None
        reason, sequence = self._stop(self._last, usage)
        delta = {"stop_reason": reason, "stop_sequence": sequence, "stop_details": None}
        last = event("message_delta", {"delta": delta, "usage": _counts(usage)}) + event("message_stop", {})
        return self._blocks.close() + last

    def failure(self, error: APIError) -> bytes:
        return event("error", anthropic_error(error))

    def body(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> bytes:
        [choice] = choices
        is_whole = choice.delta.finish_reason is not FinishReason.LENGTH
        content = blocks_of(choice.pieces, shows_thinking=self._terms.shows_thinking, is_whole=is_whole)
        reason, sequence = self._stop(choice, usage)
        return orjson.dumps(self._message(content, reason, sequence, _counts(usage) | self._tier()))

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None, usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self._header.id,
            "type": "message",
            "role": "assistant",
            "model": self._header.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "stop_details": None,
            "usage": usage,
        }

    def _tier(self) -> dict[str, Any]:
        """The `service_tier` of `usage`, if the request has one."""
        tier = self._header.service_tier
        return {} if tier is None else {"service_tier": _TIERS[tier]}

    def _stop(self, last: ParsedDelta, usage: UsageTotal) -> tuple[str, str | None]:
        """The stop reason and the stop sequence. A limit's cut is `max_tokens`, as in Anthropic's API; the context
        window's is `model_context_window_exceeded`."""
        delta = last.delta
        if delta.finish_reason is FinishReason.LENGTH:
            by_window = self._terms.is_cut and usage.bound_by is None
            return "model_context_window_exceeded" if by_window else "max_tokens", None
        if isinstance(delta.stop, str) and delta.stop in self._terms.stop_sequences:
            return "stop_sequence", delta.stop
        return "tool_use" if last.finish_reason == TOOL_CALLS else "end_turn", None


def blocks_of(pieces: Sequence[Piece], *, shows_thinking: bool, is_whole: bool) -> list[dict[str, Any]]:
    """The content blocks of an answer in order. `is_whole`: the answer was not cut off."""
    blocks: list[dict[str, Any]] = []
    arguments: dict[int, str] = {}
    for piece in pieces:
        kind = blocks[-1]["type"] if blocks else None
        match piece:
            case Text(text):
                if kind != "text":
                    blocks.append({"type": "text", "text": ""})
                blocks[-1]["text"] += text
            case Reasoning(text):
                if kind != "thinking":
                    blocks.append({"type": "thinking", "thinking": "", "signature": ""})
                blocks[-1]["thinking"] += text if shows_thinking else ""
            case CallBegun(_, id, name):
                arguments[len(blocks)] = ""
                blocks.append({"type": "tool_use", "id": id, "name": name, "input": {}})
            case CallArguments(_, text):
                arguments[len(blocks) - 1] += text
    for position, text in arguments.items():
        blocks[position]["input"] = _input(text, is_whole)
    return blocks


def _input(arguments: str, is_whole: bool) -> dict[str, Any]:
    """A call's arguments as an object. Arguments that were cut off are parsed partially, as Anthropic's clients do with
    a stream. Invalid JSON is returned under `INVALID_JSON` and never repaired, since a client would act on it."""
    if not arguments:
        return {}
    try:
        read = from_json(arguments, allow_partial=not is_whole)
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {INVALID_JSON: arguments}


def _input_counts(prompt_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
    }


def _counts(usage: UsageTotal) -> dict[str, Any]:
    """Usage of a complete answer. Hidden reasoning counts like shown reasoning."""
    return _input_counts(usage.prompt_tokens, usage.cached_tokens) | {
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
