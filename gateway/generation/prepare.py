"""From a validated request to token ids that the named model can serve."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.grammar import GrammarSpec
from engine.request import SamplingParams
from engine.text.chat_template import ChatTemplateError
from engine.text.infilling import Infilling
from engine.text.least_tokens import TooManyTokens
from engine.text.processor import TextProcessor
from gateway.generation.engine_client import ServedModel
from gateway.generation.lengths import (
    answer_tokens,
    bound_prompt_logprobs,
    longer_than_window,
    require_tokenizable,
    truncated,
)
from gateway.generation.request import Conversation, Gap, GenerationRequest, Prompt
from gateway.generation.text_pool import TextLane
from gateway.http.errors import invalid, template_refusal
from gateway.speech.forced import forced_grammar
from gateway.speech.prompting import shown


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt in the model's tokens. `echo`: the prompt's text if the answer is to repeat it, else None.
    `continues_text`: the answer continues the prompt's text."""

    token_ids: Sequence[int]
    params: SamplingParams
    """With `max_tokens` and `grammar` set."""
    echo: str | None
    continues_text: bool

    @property
    def max_tokens(self) -> int:
        assert self.params.max_tokens is not None
        return self.params.max_tokens


async def prepare(request: GenerationRequest, model: ServedModel, window: int, lane: TextLane) -> list[PreparedPrompt]:
    """Tokenise, and check prompt and answer against `window`, in tokens. (The engine checks token ids.)

    Text that cannot fit the window is refused without tokenising it.

    Raises:
        APIError: 400, `context_length_exceeded` if prompt and answer do not fit the window; the model has no chat
            template, or the template refuses these messages.
        ClientGone: the client disconnected.
    """
    prompts, param = prompts_of(request), request.prompt_param
    most_tokens: int | None = window
    if request.truncation is not None:
        require_tokenizable(param, max(map(text_chars, prompts)), window)
        most_tokens = None
    try:
        encoded = await encode(
            prompts, model.text, lane, add_special_tokens=request.add_special_tokens, most_tokens=most_tokens
        )
    except ChatTemplateError as error:
        raise template_refusal(error, param) from error
    except TooManyTokens as error:
        raise longer_than_window(param, window, f"at least {error.at_least}") from error
    return limited(request, encoded, model, window)


def prompts_of(request: GenerationRequest) -> tuple[Prompt, ...]:
    """The prompts, with the tools that the answer may call in conversations."""
    tools = () if request.tools is None else request.tools.shown
    return tuple(
        replace(prompt, tools=tools) if tools and isinstance(prompt, Conversation) else prompt
        for prompt in request.prompts
    )


def limited(
    request: GenerationRequest, encoded: Sequence[Sequence[int]], model: ServedModel, window: int
) -> list[PreparedPrompt]:
    """As `prepare`, from the token ids of each prompt (`encoded`)."""
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


def _grammar(request: GenerationRequest) -> GrammarSpec | None:
    """The grammar of the answer: that of the body, or that of forced tool calls.

    Raises:
        APIError: 400, the request asks for both.
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


def _continues_text(prompt: Prompt) -> bool:
    return prompt.continue_final_message if isinstance(prompt, Conversation) else True


def infilling_of(text: TextProcessor) -> Infilling:
    """How the model fills in the middle.

    Raises:
        APIError: 400, the model has no tokens for it.
    """
    if text.infilling is None:
        raise invalid("suffix", "The model was not trained to fill in the middle.", "unsupported_parameter")
    return text.infilling


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


def _echo(prompt: Prompt, token_ids: Sequence[int], request: GenerationRequest, text: TextProcessor) -> str:
    if isinstance(prompt, Conversation):
        return prompt.begun_answer
    assert not isinstance(prompt, Gap), "a gap is never echoed"
    if isinstance(prompt, str) and request.truncation is None:
        return prompt
    return text.decode(token_ids, skip_special_tokens=request.params.skip_special_tokens)
