"""Completions on the wire: `text_completion`, streamed or whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.request import TextDelta, TokenLogprob
from engine.text.tokenizer import Tokenizer
from gateway.api.logprobs import LegacyLogprobs
from gateway.api.usage import UsageTotal
from gateway.api.wire import Header, chunk_end

_KIND = "text_completion"


@dataclass(slots=True)
class Echo:
    """A prompt that stands in front of each of its choices. Its log-probabilities come with the first delta."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprob | None] = ()


class CompletionWire:
    """Choice c answers prompt c // choices_each. `echoes` has one entry a prompt, or none at all."""

    def __init__(
        self,
        header: Header,
        tokenizer: Tokenizer,
        *,
        echoes: Sequence[Echo],
        choices_each: int,
        logprobs: bool,
        include_usage: bool,
    ) -> None:
        self._header = header
        self._tokenizer = tokenizer
        self._echoes = echoes
        self._choices_each = choices_each
        self._want_logprobs = logprobs
        self._start = header.chunk_start(_KIND)
        self._end = chunk_end(include_usage)
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()

    def chunks(self, choice: int, delta: TextDelta) -> Sequence[bytes]:
        fields = self._choice(choice, delta)
        if not (fields["text"] or fields["logprobs"] or fields["finish_reason"]):
            return ()
        return (self._start + orjson.dumps(fields) + self._end,)

    def usage_chunk(self, usage: UsageTotal) -> bytes:
        return orjson.dumps(self._header.wire(_KIND) | {"choices": [], "usage": usage.wire()})

    def body(self, choices: Sequence[TextDelta], usage: UsageTotal) -> bytes:
        wire_choices = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return orjson.dumps(self._header.wire(_KIND) | {"choices": wire_choices, "usage": usage.wire()})

    def _choice(self, choice: int, delta: TextDelta) -> dict[str, Any]:
        text = delta.text
        token_ids: Sequence[int] = delta.token_ids
        entries: Sequence[TokenLogprob | None] = delta.logprobs
        if self._echoes:
            echo = self._echoes[choice // self._choices_each]
            echo.logprobs = delta.prompt_logprobs or echo.logprobs
            if choice not in self._begun:
                self._begun.add(choice)
                text = echo.text + text
                token_ids = (*echo.token_ids, *token_ids)
                entries = (*echo.logprobs, *entries)
        return {
            "index": choice,
            "text": text,
            "logprobs": self._piece(choice, token_ids, entries),
            "finish_reason": delta.finish_reason,
        }

    def _piece(
        self, choice: int, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]
    ) -> dict[str, Any] | None:
        if not (self._want_logprobs and token_ids):
            return None
        state = self._logprobs.get(choice)
        if state is None:
            state = self._logprobs[choice] = LegacyLogprobs(self._tokenizer)
        return state.piece(token_ids, entries)
