"""Prompts as Python callers pass them, and whole answers collected from a stream."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from engine.request import FinishReason, TextDelta, TokenLogprob, Usage, joined_delta
from engine.text.processor import Message, TextProcessor

Prompt = str | Sequence[int] | Sequence[Message]
"""Plain text, token ids, or the messages of a conversation."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished choice."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob | None, ...]
    finish_reason: FinishReason
    stop: str | int | None
    usage: Usage


def is_chat(prompt: Prompt) -> bool:
    """Whether the prompt is a list of messages."""
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def token_ids_of(text: TextProcessor, prompt: Prompt) -> Sequence[int]:
    """The prompt's token ids."""
    if isinstance(prompt, str):
        return text.encode(prompt)
    if is_chat(prompt):
        return text.encode_chat(cast(Sequence[Message], prompt))
    return cast(Sequence[int], prompt)


async def collect(stream: AsyncIterator[TextDelta], choices: int) -> list[Completion]:
    """Read a stream of `choices` choices to its end."""
    parts: list[list[TextDelta]] = [[] for _ in range(choices)]
    async for delta in stream:
        parts[delta.index].append(delta)
    return [_complete(deltas) for deltas in parts]


def _complete(deltas: Sequence[TextDelta]) -> Completion:
    whole = joined_delta(deltas)
    assert whole.finish_reason is not None
    assert whole.usage is not None
    return Completion(
        text=whole.text,
        token_ids=whole.token_ids,
        logprobs=whole.logprobs,
        prompt_logprobs=whole.prompt_logprobs,
        finish_reason=whole.finish_reason,
        stop=whole.stop,
        usage=whole.usage,
    )
