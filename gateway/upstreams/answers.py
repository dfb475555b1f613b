"""From the events of an upstream's answer to deltas, with its tokens counted.

How tokens are counted, the best that the server allows: by the usage in each chunk; by log-probabilities, an entry a
token; by the model's tokenizer; else estimated, and never fewer than one a chunk. The usage at the end replaces these.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.request import FinishReason, PromptInput, TokenLogprob, Usage
from gateway.generation.remote_prompt import BYTES_PER_TOKEN, UNKNOWN_TOKEN, RemotePrompt
from gateway.speech.pieces import CallArguments, CallBegun, Piece, Reasoning, Text
from gateway.speech.structured import StructuredDelta
from gateway.upstreams.body import prompt_of
from gateway.upstreams.errors import lost, no_answer, of_event
from gateway.upstreams.logprobs import read_logprobs

DONE = b"[DONE]"

_FINISHES = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "function_call": FinishReason.STOP,
    "content_filter": FinishReason.STOP,
    "length": FinishReason.LENGTH,
}
_MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
_MAX_TOKENS = 2**31


@dataclass(frozen=True, slots=True)
class ReportedUsage:
    """A `usage` object."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def read(cls, stated: Mapping[str, Any]) -> "ReportedUsage":
        """Raises: TypeError, ValueError, KeyError: it is malformed."""
        prompt = _tokens(stated["prompt_tokens"])
        cached = (stated.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        reasoning = (stated.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
        completion = _tokens(stated.get("completion_tokens") or 0)
        return cls(prompt, completion, min(_tokens(cached), prompt), min(_tokens(reasoning), completion))


@dataclass(slots=True)
class _Choice:
    """One choice. `tokens`: counted so far; `is_exact`: not estimated. `chunks`: that had content, `size`: its bytes.
    `calls`: the server's number of a call -> its place in the answer. `is_cut`: ended here, at its limit."""

    tokens: int = 0
    is_exact: bool = True
    chunks: int = 0
    size: int = 0
    finish: FinishReason | None = None
    stop: str | None = None
    calls: dict[int, int] = field(default_factory=dict)
    is_cut: bool = False


class AnswerReader:
    """Reads the answers to one prompt. `first`: the number of its first choice. `count`: the tokens of a text; None
    where they cannot be counted.

    An answer ends at its `max_tokens` even if the server continues it: the chunk that reaches them is the last that is
    delivered.
    """

    def __init__(self, given: PromptInput, first: int, count: Callable[[str], int | None]) -> None:
        assert given.params.max_tokens is not None
        self._prompt: RemotePrompt = prompt_of(given)
        self._limit = given.params.max_tokens
        self._is_budget = self._prompt.answer_tokens is not None and self._limit < self._prompt.answer_tokens
        self._first = first
        self._count = count
        self._choices = [_Choice() for _ in range(given.params.n)]
        self._reported: ReportedUsage | None = None
        self._prompt_tokens: int | None = None
        self._is_done = False
        self.is_sent = False
        """Whether the server may have computed the prompt."""

    @property
    def choices(self) -> range:
        """The numbers of its choices."""
        return range(self._first, self._first + len(self._choices))

    @property
    def is_done(self) -> bool:
        """Whether nothing more is to be read."""
        return self._is_done or self.is_cut

    @property
    def is_cut(self) -> bool:
        """Whether the server may have more, which is past the limit of each choice."""
        return all(choice.is_cut for choice in self._choices)

    @property
    def is_whole(self) -> bool:
        """Whether all choices have ended. Their usage may still arrive."""
        return all(choice.finish is not None for choice in self._choices)

    @property
    def is_estimated(self) -> bool:
        """Whether the usage of the answer is an estimate."""
        return self._reported is None and not all(self._is_counted(choice) for choice in self._choices)

    def read(self, data: bytes) -> list[StructuredDelta]:
        """The deltas of an event.

        Raises:
            APIError: the server reports an error, or the event is no part of an answer.
        """
        if data == DONE:
            self._is_done = True
            return []
        try:
            return self._read(orjson.loads(data))
        except _MALFORMED:
            raise no_answer() from None

    def finish(self) -> list[StructuredDelta]:
        """The last delta of each choice, once nothing more arrives.

        Raises:
            APIError: the answer is incomplete.
        """
        if not self.is_whole:
            raise lost()
        completions = self._completions()
        reported = self._reported
        cached_tokens = 0 if reported is None else reported.cached_tokens
        prompt_tokens = self._known_prompt_tokens
        last = []
        for index, (choice, completion_tokens) in enumerate(zip(self._choices, completions, strict=True)):
            usage = Usage(prompt_tokens, completion_tokens, cached_tokens, prefilled_tokens=prompt_tokens)
            reasoning_tokens = reported.reasoning_tokens if reported is not None and index == 0 else 0
            last.append(
                StructuredDelta(
                    self._first + index,
                    finish_reason=choice.finish,
                    stop=choice.stop,
                    usage=usage,
                    cached_tokens=cached_tokens,
                    reasoning_tokens=reasoning_tokens,
                    prompt_tokens=prompt_tokens,
                    is_estimated=self.is_estimated,
                )
            )
        return last

    def usage_of(self, number: int) -> Usage:
        """The usage of choice `number` so far, as far as it is known."""
        if not self.is_sent:
            return Usage(self._prompt.tokens, 0)
        prompt_tokens = self._known_prompt_tokens
        tokens = self._choices[number - self._first].tokens
        return Usage(prompt_tokens, tokens, prefilled_tokens=prompt_tokens)

    @property
    def _known_prompt_tokens(self) -> int:
        return self._prompt.tokens if self._prompt_tokens is None else self._prompt_tokens

    def _read(self, event: Any) -> list[StructuredDelta]:
        if event.get("error"):
            raise of_event(event["error"])
        stated, items = event.get("usage"), event.get("choices") or []
        usage = None
        if stated and stated.get("completion_tokens") is not None:
            usage = ReportedUsage.read(stated)
            self._prompt_tokens = usage.prompt_tokens
            if not items or len(self._choices) == 1:
                self._reported = usage
            self._is_done = not items and self.is_whole
        return [delta for item in items if (delta := self._delta(item, usage)) is not None]

    def _delta(self, item: Mapping[str, Any], usage: ReportedUsage | None) -> StructuredDelta | None:
        index = item.get("index") or 0
        if not 0 <= index < len(self._choices):
            raise no_answer()
        choice = self._choices[index]
        if choice.is_cut:
            return None
        pieces = self._pieces(choice, item)
        logprobs = read_logprobs(item.get("logprobs"))
        reason = item.get("finish_reason")
        content = "".join(piece.text for piece in pieces if not isinstance(piece, CallBegun))
        if content and choice.finish is None and self._is_exhausted(choice, usage):
            choice.finish, choice.is_cut = FinishReason.LENGTH, True
            return None
        tokens = self._new_tokens(choice, content, logprobs, usage)
        if reason is not None:
            choice.finish = _finish_of(reason)
            choice.stop = stop if isinstance(stop := item.get("stop_reason"), str) else None
        if not pieces and not tokens:
            return None
        return StructuredDelta(
            self._first + index,
            "".join(piece.text for piece in pieces if isinstance(piece, Text)),
            tokens,
            logprobs[: len(tokens)],
            pieces=tuple(pieces),
            prompt_tokens=self._prompt_tokens,
            is_estimated=self._reported is None and not self._is_counted(choice),
        )

    def _is_counted(self, choice: _Choice) -> bool:
        """Whether the tokens of a choice and of its prompt are counted without an estimate so far."""
        is_prompt_known = self._prompt_tokens is not None or self._prompt.known_ids is not None
        return is_prompt_known and choice.is_exact

    def _is_exhausted(self, choice: _Choice, usage: ReportedUsage | None) -> bool:
        """Whether a chunk is past the answer's tokens. `usage`: as the chunk has it; several chunks may share the usage
        of one token. An estimate may be too high, so it ends nothing but a budget."""
        if usage is not None and usage.completion_tokens <= choice.tokens:
            return False
        return (choice.tokens if choice.is_exact or self._is_budget else choice.chunks) >= self._limit

    def _new_tokens(
        self, choice: _Choice, content: str, logprobs: Sequence[TokenLogprob], usage: ReportedUsage | None
    ) -> tuple[int, ...]:
        """The ids of the tokens that a chunk adds to the count, as far as the answer may have them: what a client is
        billed is within what was held for it."""
        room = max(0, self._limit - choice.tokens)
        choice.chunks += bool(content)
        choice.size += len(content.encode(errors="replace"))
        if logprobs:
            choice.tokens += len(logprobs)
            return tuple(entry.token_id for entry in logprobs[:room])
        if usage is not None:
            total = usage.completion_tokens
        elif not content:
            total = choice.tokens
        elif (counted := self._count(content)) is not None:
            total = choice.tokens + max(1, counted)
        else:
            choice.is_exact = False
            total = max(choice.tokens, choice.chunks, -(-choice.size // BYTES_PER_TOKEN))
        new = max(0, total - choice.tokens)
        choice.tokens += new
        return (UNKNOWN_TOKEN,) * min(new, room)

    def _completions(self) -> list[int]:
        """The tokens of each choice: as counted, corrected to the sum that the server reports. None is over its
        limit."""
        counted = [min(choice.tokens, self._limit) for choice in self._choices]
        if self._reported is None or any(choice.is_cut for choice in self._choices):
            return counted
        missing = self._reported.completion_tokens - sum(counted)
        for index, tokens in enumerate(counted):
            counted[index] = min(self._limit, max(0, tokens + missing))
            missing -= counted[index] - tokens
        return counted

    def _pieces(self, choice: _Choice, item: Mapping[str, Any]) -> list[Piece]:
        message = item.get("delta") or item.get("message") or {}
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        text = item.get("text") or message.get("content") or message.get("refusal") or ""
        pieces: list[Piece] = []
        if reasoning:
            pieces.append(Reasoning(_string(reasoning)))
        if text:
            pieces.append(Text(_string(text)))
        for position, call in enumerate(message.get("tool_calls") or ()):
            pieces += self._call(choice, position, call)
        return pieces

    def _call(self, choice: _Choice, position: int, call: Mapping[str, Any]) -> list[Piece]:
        """A part of a call: its id and name come first, then its arguments."""
        number = call.get("index", position)
        function = call.get("function") or {}
        pieces: list[Piece] = []
        if number not in choice.calls:
            place = choice.calls[number] = len(choice.calls)
            pieces.append(CallBegun(place, call.get("id") or f"call_{uuid.uuid4().hex[:24]}", function["name"]))
        if arguments := function.get("arguments"):
            pieces.append(CallArguments(choice.calls[number], _string(arguments)))
        return pieces


def _finish_of(reason: str) -> FinishReason:
    if (finish := _FINISHES.get(reason)) is None:
        raise of_event(None)
    return finish


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _tokens(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MAX_TOKENS:
        raise ValueError
    return value
