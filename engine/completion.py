"""Prompts as a caller of Python has them, and the whole answers that streams come to."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from engine.request import FinishReason, TextDelta, TokenLogprob, Usage
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
    return not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def token_ids_of(text: TextProcessor, prompt: Prompt) -> Sequence[int]:
    """The prompt's token ids."""
    if isinstance(prompt, str):
        return text.encode(prompt)
    if is_chat(prompt):
        return text.encode_chat(cast(Sequence[Message], prompt))
    return cast(Sequence[int], prompt)


async def collect(stream: AsyncIterator[TextDelta], choices: int) -> list[Completion]:
    """Read a stream of so many choices to its end."""
    parts: list[list[TextDelta]] = [[] for _ in range(choices)]
    async for delta in stream:
        parts[delta.index].append(delta)
    return [_complete(deltas) for deltas in parts]


def _complete(deltas: Sequence[TextDelta]) -> Completion:
    last = deltas[-1]
    assert last.finish_reason is not None
    assert last.usage is not None
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(entry for delta in deltas for entry in delta.logprobs),
        prompt_logprobs=deltas[0].prompt_logprobs,
        finish_reason=last.finish_reason,
        stop=last.stop,
        usage=last.usage,
    )
