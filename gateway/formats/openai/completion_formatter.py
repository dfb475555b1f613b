"""Formats completions: `text_completion`, streamed or whole."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.request import TextDelta, TokenLogprob
from engine.text.tokenizer import Tokenizer
from gateway.formats.openai.details import DetailsFormatter
from gateway.formats.openai.logprobs import LegacyLogprobs
from gateway.generation.request import GenerationRequest
from gateway.generation.response_format import DONE, ResponseMeta, chunk_end, chunk_end_with, event
from gateway.generation.usage import UsageTotal
from gateway.http.errors import APIError
from gateway.speech.output_parser import ParsedDelta

_KIND = "text_completion"


@dataclass(slots=True)
class EchoedPrompt:
    """A prompt's part in its choices. `echo`: text put before each choice, or None. `logprobs`: of the prompt; they
    arrive with the first delta of its first choice."""

    token_ids: Sequence[int]
    echo: str | None = None
    logprobs: Sequence[TokenLogprob | None] = ()


class CompletionFormatter:
    """Choice c belongs to prompt c // n. With `best`, the response has the `best` choices of each prompt."""

    def __init__(
        self, header: ResponseMeta, tokenizer: Tokenizer, request: GenerationRequest, prompts: Sequence[EchoedPrompt]
    ) -> None:
        self._header = header
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._choices_each = request.params.n
        self._best = request.best
        self._alternatives = request.details.logprobs
        self._running_usage = request.details.running_usage
        self._include_usage = request.include_usage
        self._details = DetailsFormatter(
            request.details, [prompt.token_ids for prompt in prompts], self._choices_each, tokenizer
        )
        self._start = header.chunk_start(_KIND)
        self._end = chunk_end(request.include_usage)
        self._logprobs: dict[int, LegacyLogprobs] = {}
        self._begun: set[int] = set()

    def start(self) -> bytes:
        return b""

    def events(self, output: ParsedDelta) -> bytes:
        choice, delta = output.choice, output.delta
        fields = self._choice(choice, delta)
        end = self._end
        if self._running_usage:
            end = chunk_end_with({"usage": self._details.usage_so_far(choice, delta)})
        if not (fields["text"] or fields["logprobs"] or fields["finish_reason"] or fields.get("token_ids")):
            return b""
        return event(self._start + orjson.dumps(fields) + end)

    def end(self, usage: UsageTotal) -> bytes:
        if not self._include_usage:
            return DONE
        return event(orjson.dumps(self._header.wire(_KIND) | {"choices": [], "usage": usage.openai_usage()})) + DONE

    def failure(self, error: APIError) -> bytes:
        return event(error.envelope())

    def body(self, choices: Sequence[ParsedDelta], usage: UsageTotal) -> bytes:
        formatted = [self._choice(index, choice.delta) for index, choice in enumerate(choices)]
        if self._best is not None:
            formatted = [
                formatted[index] for index in self._likeliest([choice.delta for choice in choices], self._best)
            ]
        numbered = [fields | {"index": index} for index, fields in enumerate(formatted)]
        return orjson.dumps(self._header.wire(_KIND) | {"choices": numbered, "usage": usage.openai_usage()})

    def _likeliest(self, choices: Sequence[TextDelta], best: int) -> list[int]:
        """Indices of the `best` choices of each prompt, by mean log-probability; ties keep their order."""
        kept: list[int] = []
        for first in range(0, len(choices), self._choices_each):
            indices = range(first, first + self._choices_each)
            kept += sorted(indices, key=lambda index: -_mean_logprob(choices[index]))[:best]
        return kept

    def _choice(self, choice: int, delta: TextDelta) -> dict[str, Any]:
        text = delta.text
        token_ids: Sequence[int] = delta.token_ids
        entries: Sequence[TokenLogprob | None] = delta.logprobs
        prompt = self._prompts[choice // self._choices_each]
        prompt.logprobs = delta.prompt_logprobs or prompt.logprobs
        of_prompt: dict[str, Any] = {}
        if choice not in self._begun:
            self._begun.add(choice)
            of_prompt = self._details.of_prompt(choice, prompt.logprobs)
            if prompt.echo is not None:
                text = prompt.echo + text
                token_ids = (*prompt.token_ids, *token_ids)
                entries = (*prompt.logprobs, *entries)
        return {
            "index": choice,
            "text": text,
            "logprobs": self._piece(choice, token_ids, entries),
            "finish_reason": delta.finish_reason,
            **of_prompt,
            **self._details.of_answer(delta),
        }

    def _piece(
        self, choice: int, token_ids: Sequence[int], entries: Sequence[TokenLogprob | None]
    ) -> dict[str, Any] | None:
        if self._alternatives is None or not token_ids:
            return None
        state = self._logprobs.get(choice)
        if state is None:
            state = self._logprobs[choice] = LegacyLogprobs(self._tokenizer, self._alternatives)
        return state.piece(token_ids, entries)


def _mean_logprob(choice: TextDelta) -> float:
    """Mean log-probability of a choice's tokens; minus infinity for an empty choice."""
    logprobs = [entry.logprob for entry in choice.logprobs]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
