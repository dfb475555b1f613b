"""From a validated request to token ids that the named model can serve."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.grammar import GrammarSpec
from engine.request import SamplingParams
from engine.text.chat_template import ChatTemplateError
from engine.text.infilling import Infilling
from engine.text.processor import TextProcessor
from gateway.api.bounds import MAX_INLINE_CHARS
from gateway.api.engine_client import ServedModel
from gateway.api.errors import invalid, template_refusal
from gateway.api.generation import Conversation, Gap, GenerationRequest, Prompt
from gateway.api.lengths import answer_tokens, bound_prompt_logprobs, truncated
from gateway.speech.forced import forced_grammar
from gateway.speech.prompting import shown


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """`echo` is the prompt as text where the client wants it back, else None. `continues_text`: the answer goes on
    where the prompt's text ends."""

    token_ids: Sequence[int]
    params: SamplingParams
    """With the length of the answer settled, and what it is held to."""
    echo: str | None
    continues_text: bool

    @property
    def max_tokens(self) -> int:
        assert self.params.max_tokens is not None
        return self.params.max_tokens


async def prepare(request: GenerationRequest, model: ServedModel, window: int) -> list[PreparedPrompt]:
    """Tokenise, and hold prompt and answer against the window, in tokens. (The engine checks token ids.)

    Raises:
        APIError: 400, `context_length_exceeded` where prompt and answer do not fit the window; the model has no chat
            template, or it refuses these messages.
    """
    try:
        encoded = await encode(prompts_of(request), model.text, add_special_tokens=request.add_special_tokens)
    except ChatTemplateError as error:
        raise template_refusal(error, request.prompt_param) from error
    return limited(request, encoded, model, window)


def prompts_of(request: GenerationRequest) -> tuple[Prompt, ...]:
    """What its model is asked: conversations with the tools that it may call."""
    tools = () if request.tools is None else request.tools.shown
    return tuple(
        replace(prompt, tools=tools) if tools and isinstance(prompt, Conversation) else prompt
        for prompt in request.prompts
    )


def limited(
    request: GenerationRequest, encoded: Sequence[Sequence[int]], model: ServedModel, window: int
) -> list[PreparedPrompt]:
    """As `prepare`, from the token ids of each prompt."""
    prepared = []
    encoded = [truncated(request, ids, window) for ids in encoded]
    bound_prompt_logprobs(request, encoded)
    grammar = _grammar(request)
    for prompt, ids in zip(request.prompts, encoded, strict=True):
        params = replace(
            request.params,
            max_tokens=answer_tokens(request, len(ids), window),
            grammar=grammar,
            conversational=isinstance(prompt, Conversation),
        )
        if isinstance(prompt, Gap) and not params.ignore_eos:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *infilling_of(model.text).ends))
        echo = _echo(prompt, ids, request, model.text) if request.echo else None
        prepared.append(PreparedPrompt(ids, params, echo, _continues_text(prompt)))
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
        case Gap(before, behind):
            return infilling_of(text).encode(before, behind, add_special_tokens=add_special_tokens)
        case Conversation():
            messages, tools = shown(prompt.messages, prompt.tools, text.dialect)
            return text.encode_chat(
                messages,
                add_generation_prompt=prompt.add_generation_prompt,
                continue_final_message=prompt.continue_final_message,
                **tools,
                **_variables(prompt, text),
            )
        case _:
            return prompt


def _grammar(request: GenerationRequest) -> GrammarSpec | None:
    """What the answer is held to: what the body says, or the calls that it has to make.

    Raises:
        APIError: both. No answer can be a call and text of some form.
    """
    asked, use = request.params.grammar, request.tools
    if use is None or not use.shown:
        return asked
    if asked is not None:
        raise invalid(
            asked.param, f"{asked.param} cannot be asked for together with {use.param}.", "unsupported_parameter"
        )
    return forced_grammar(use)


def _variables(conversation: Conversation, text: TextProcessor) -> dict[str, str | int | float | bool]:
    """What the template may look at, the effort among it in the template's own words."""
    variables, effort = dict(conversation.variables), conversation.reasoning_effort
    if effort is None:
        return variables
    if text.template_reads("reasoning_effort"):
        return {"reasoning_effort": effort, **variables}
    if effort == "none" and text.template_reads("enable_thinking"):
        return {"enable_thinking": False, **variables}
    message = f"The model's chat template knows no reasoning effort {effort}."
    raise invalid(conversation.effort_param, message, "unsupported_parameter")


def _continues_text(prompt: Prompt) -> bool:
    return prompt.continue_final_message if isinstance(prompt, Conversation) else True


def infilling_of(text: TextProcessor) -> Infilling:
    """
    Raises:
        APIError: the model has no tokens for it.
    """
    if text.infilling is None:
        raise invalid("suffix", "The model was not trained to fill in the middle.", "unsupported_parameter")
    return text.infilling


def _chars(prompt: Prompt) -> int:
    match prompt:
        case str():
            return len(prompt)
        case Gap(before, behind):
            return len(before) + len(behind)
        case Conversation():
            return prompt.chars
        case _:
            return 0


def _echo(prompt: Prompt, token_ids: Sequence[int], request: GenerationRequest, text: TextProcessor) -> str:
    if isinstance(prompt, Conversation):
        return prompt.begun_answer
    assert not isinstance(prompt, Gap), "a gap is never echoed"
    if isinstance(prompt, str) and request.truncation is None:
        return prompt
    return text.decode(token_ids, skip_special_tokens=request.params.skip_special_tokens)
