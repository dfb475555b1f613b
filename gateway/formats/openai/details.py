"""Optional details of an answer: vLLM's extensions `return_token_ids` and `prompt_logprobs`."""

from collections.abc import Sequence
from typing import Any

from engine.request import TextDelta, TokenLogprob
from engine.text.tokenizer import Tokenizer
from gateway.formats.openai.logprobs import prompt_logprobs
from gateway.formats.openai.sampling import Streaming
from gateway.generation.request import Details
from gateway.generation.usage import token_usage
from gateway.http.errors import invalid
from gateway.http.fields import Fields


def take_details(fields: Fields, streaming: Streaming, *, logprobs: int | None, most: int) -> Details:
    """Parse `return_token_ids` and `prompt_logprobs`, which is at most `most`. Includes what was parsed before.

    Raises:
        APIError: a value of a wrong type or over a bound, or `prompt_logprobs` in a stream.
    """
    wanted = fields.integer("prompt_logprobs", 0, most)
    if wanted is not None and streaming.stream:
        raise invalid(
            "prompt_logprobs", "'prompt_logprobs' is not supported when 'stream' is true.", "unsupported_parameter"
        )
    return Details(fields.boolean("return_token_ids", False), wanted, logprobs, streaming.running_usage)


class DetailsFormatter:
    """Formats the details. `prompts`: token ids; choice c belongs to prompt c // choices_each."""

    def __init__(
        self, details: Details, prompts: Sequence[Sequence[int]], choices_each: int, tokenizer: Tokenizer
    ) -> None:
        self._details = details
        self._prompts = prompts
        self._choices_each = choices_each
        self._tokenizer = tokenizer
        self._completion_tokens: dict[int, int] = {}

    def of_prompt(self, choice: int, entries: Sequence[TokenLogprob | None] = ()) -> dict[str, Any]:
        """Members that describe a choice's prompt. `entries`: the prompt's log-probabilities."""
        members: dict[str, Any] = {}
        if self._details.token_ids:
            members["prompt_token_ids"] = self._prompt(choice)
        if self._details.prompt_logprobs is not None:
            members["prompt_logprobs"] = prompt_logprobs(entries, self._details.prompt_logprobs, self._tokenizer)
        return members

    def of_answer(self, delta: TextDelta) -> dict[str, Any]:
        """Ids of a delta's tokens, including the stop token: as many as usage counts."""
        if not self._details.token_ids:
            return {}
        return {"token_ids": [*delta.token_ids, *([delta.stop] if isinstance(delta.stop, int) else [])]}

    def usage_so_far(self, choice: int, delta: TextDelta) -> dict[str, Any]:
        """The usage of one choice including this delta, its next one."""
        tokens = self._completion_tokens.get(choice, 0) + len(delta.token_ids)
        self._completion_tokens[choice] = tokens if delta.usage is None else delta.usage.completion_tokens
        return token_usage(len(self._prompt(choice)), self._completion_tokens[choice])

    def _prompt(self, choice: int) -> Sequence[int]:
        return self._prompts[choice // self._choices_each]
