"""Prompts to token ids of a model."""

from collections.abc import Sequence
from dataclasses import replace

from engine.text.chat_template import ChatTemplateError
from engine.text.infilling import Infilling
from engine.text.least_tokens import TooManyTokens
from engine.text.processor import TextProcessor
from gateway.generation.request import Conversation, Gap, GenerationRequest, Prompt
from gateway.generation.text_pool import TextLane
from gateway.http.bounds import MIN_TOKENIZED_BYTES, TOKENIZED_BYTES_PER_TOKEN
from gateway.http.errors import invalid, longer_than_window, template_refusal
from gateway.http.fields import too_long
from gateway.speech.prompting import shown


def most_tokens_of(request: GenerationRequest, window: int) -> int | None:
    """The number of tokens that a prompt's text may have before it is tokenised; None: any, as it is truncated.

    Raises:
        APIError: 400, text that is to be truncated is over its bound in bytes.
    """
    if request.truncation is None:
        return window
    require_tokenizable(request.prompt_param, max(map(text_chars, request.prompts)), window)
    return None


async def encoded(
    request: GenerationRequest, text: TextProcessor, lane: TextLane, *, window: int, most_tokens: int | None
) -> Sequence[Sequence[int]]:
    """Token ids of each prompt of a request, for a context window of `window` tokens. `most_tokens`: from
    `most_tokens_of`; text with more is refused without tokenising it.

    Raises:
        APIError: 400, `context_length_exceeded`; the model has no chat template, or the template refuses these
            messages.
        ClientGone: the client disconnected.
    """
    prompts, param = prompts_of(request), request.prompt_param
    try:
        return await encode(prompts, text, lane, add_special_tokens=request.add_special_tokens, most_tokens=most_tokens)
    except ChatTemplateError as error:
        raise template_refusal(error, param) from error
    except TooManyTokens as error:
        raise longer_than_window(param, window, f"at least {error.at_least}") from error


def prompts_of(request: GenerationRequest) -> tuple[Prompt, ...]:
    """The prompts, with the tools that the answer may call in conversations."""
    tools = () if request.tools is None else request.tools.shown
    return tuple(
        replace(prompt, tools=tools) if tools and isinstance(prompt, Conversation) else prompt
        for prompt in request.prompts
    )


async def encode(
    prompts: Sequence[Prompt],
    text: TextProcessor,
    lane: TextLane,
    *,
    add_special_tokens: bool = True,
    most_tokens: int | None = None,
) -> list[Sequence[int]]:
    """Token ids of each prompt. Long text is tokenised on a thread, so that it does not delay other streams.

    `add_special_tokens` applies to plain text; a chat template writes its own.

    Raises:
        TooManyTokens: a prompt has more than `most_tokens` tokens, by a bound on its text.
        ChatTemplateError: the model has no template, or the template refuses these messages.
        ClientGone: the client disconnected.
    """

    def encode_all() -> list[Sequence[int]]:
        return [_encode(prompt, text, add_special_tokens, most_tokens) for prompt in prompts]

    return await lane.run(sum(map(text_chars, prompts)), encode_all)


def text_chars(prompt: Prompt) -> int:
    """Approximate length of the text to tokenise, to choose where to do it; 0 for token ids."""
    match prompt:
        case str():
            return len(prompt)
        case Gap(before, behind):
            return len(before) + len(behind)
        case Conversation():
            return prompt.chars
        case _:
            return 0


def require_tokenizable(param: str, text_bytes: int, window: int) -> None:
    """Bound text that is tokenised even if it has more tokens than the window, because it is truncated.

    Raises:
        APIError: 400, `text_bytes` is over the bound.
    """
    most = max(MIN_TOKENIZED_BYTES, TOKENIZED_BYTES_PER_TOKEN * window)
    if text_bytes > most:
        raise too_long(param, most, text_bytes)


def infilling_of(text: TextProcessor) -> Infilling:
    """How the model fills in the middle.

    Raises:
        APIError: 400, the model has no tokens for it.
    """
    if text.infilling is None:
        raise invalid("suffix", "The model was not trained to fill in the middle.", "unsupported_parameter")
    return text.infilling


def _encode(prompt: Prompt, text: TextProcessor, add_special_tokens: bool, most_tokens: int | None) -> Sequence[int]:
    match prompt:
        case str():
            return text.encode(prompt, add_special_tokens=add_special_tokens, most_tokens=most_tokens)
        case Gap(before, behind):
            return infilling_of(text).encode(
                before, behind, add_special_tokens=add_special_tokens, most_tokens=most_tokens
            )
        case Conversation():
            messages, tools = shown(prompt.messages, prompt.tools, text.dialect)
            return text.encode_chat(
                messages,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                most_tokens=most_tokens,
                **tools,
                **_variables(prompt, text),
            )
        case _:
            return prompt


def _variables(conversation: Conversation, text: TextProcessor) -> dict[str, str | int | float | bool]:
    """The variables of the chat template. The reasoning effort gets the name that the template reads."""
    variables, effort = dict(conversation.variables), conversation.reasoning_effort
    if effort is None:
        return variables
    if text.template_reads("reasoning_effort"):
        return {"reasoning_effort": effort, **variables}
    if effort == "none" and text.template_reads("enable_thinking"):
        return {"enable_thinking": False, **variables}
    message = f"The model's chat template knows no reasoning effort {effort}."
    raise invalid(conversation.effort_param, message, "unsupported_parameter")
