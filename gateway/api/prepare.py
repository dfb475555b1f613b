"""From a validated request to token ids that the named model can serve."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.request import SamplingParams
from engine.text.processor import TextProcessor
from gateway.api.bounds import MAX_INLINE_CHARS
from gateway.api.engine_client import ServedModel
from gateway.api.errors import invalid
from gateway.api.generation import Conversation, GenerationRequest, Prompt


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """`echo` is the prompt as text where the client wants it back, else None. `continues_text`: the answer goes on
    where the prompt's text ends."""

    token_ids: Sequence[int]
    params: SamplingParams
    """With the length of the answer settled."""
    echo: str | None
    continues_text: bool

    @property
    def max_tokens(self) -> int:
        assert self.params.max_tokens is not None
        return self.params.max_tokens


async def prepare(request: GenerationRequest, model: ServedModel, window: int) -> list[PreparedPrompt]:
    """Tokenise, and hold prompt and answer against the window, in tokens. (The engine checks token ids.)

    Raises:
        APIError: 400, `context_length_exceeded` where prompt and answer do not fit the window.
        ChatTemplateError: the model has no template, or it refuses these messages.
    """
    return limited(request, await encode(request.prompts, model.text), model, window)


def limited(
    request: GenerationRequest, encoded: Sequence[Sequence[int]], model: ServedModel, window: int
) -> list[PreparedPrompt]:
    """As `prepare`, from the token ids of each prompt."""
    prepared = []
    for prompt, ids in zip(request.prompts, encoded, strict=True):
        params = _limit(request, len(ids), window)
        echo = _echo(prompt, model.text) if request.echo else None
        prepared.append(PreparedPrompt(ids, params, echo, not isinstance(prompt, Conversation)))
    return prepared


async def encode(
    prompts: Sequence[Prompt], text: TextProcessor, *, add_special_tokens: bool = True
) -> list[Sequence[int]]:
    """Token ids of each prompt. Much text goes to a thread, where it does not hold up everybody's streams.

    `add_special_tokens` is about plain text; a chat template says itself what it wants.
    """

    def encode_all() -> list[Sequence[int]]:
        return [_encode(prompt, text, add_special_tokens) for prompt in prompts]

    if sum(_chars(prompt) for prompt in prompts) <= MAX_INLINE_CHARS:
        return encode_all()
    return await asyncio.to_thread(encode_all)


def _encode(prompt: Prompt, text: TextProcessor, add_special_tokens: bool) -> Sequence[int]:
    match prompt:
        case str():
            return text.encode(prompt, add_special_tokens=add_special_tokens)
        case Conversation():
            return text.encode_chat(
                prompt.messages, add_generation_prompt=prompt.add_generation_prompt, **prompt.variables
            )
        case _:
            return prompt


def _chars(prompt: Prompt) -> int:
    match prompt:
        case str():
            return len(prompt)
        case Conversation():
            return prompt.chars
        case _:
            return 0


def _echo(prompt: Prompt, text: TextProcessor) -> str:
    match prompt:
        case str():
            return prompt
        case Conversation():
            raise AssertionError("a conversation is never echoed")
        case _:
            return text.decode(prompt)


def _limit(request: GenerationRequest, prompt_tokens: int, window: int) -> SamplingParams:
    """The parameters with the answer's length settled: what was asked for, the default, or the rest of the window."""
    param = request.prompt_param
    if prompt_tokens == 0:
        raise invalid(param, f"{param} has no tokens.")
    room = window - prompt_tokens
    wanted = request.params.max_tokens
    if room < (1 if wanted is None else min(1, wanted)):
        raise invalid(
            param,
            f"The window is {window} tokens, and the {param} has {prompt_tokens}.",
            "context_length_exceeded",
        )
    if wanted is None:
        default = room if request.default_max_tokens is None else request.default_max_tokens
        return replace(request.params, max_tokens=min(default, room))
    if wanted > room:
        raise invalid(
            request.limit_param,
            f"The window is {window} tokens; {prompt_tokens} of the {param} and {wanted} of the answer do not fit.",
            "context_length_exceeded",
        )
    return request.params
