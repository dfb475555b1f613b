"""From token ids to prompts that the named model can serve: length, answer, grammar."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.grammar import GrammarSpec
from engine.request import SamplingParams
from engine.text.processor import TextProcessor
from gateway.generation.engine_client import ServedModel
from gateway.generation.prompt_encoding import infilling_of
from gateway.generation.remote_prompt import RemoteText
from gateway.generation.request import Conversation, Gap, GenerationRequest, Prompt
from gateway.http.bounds import MAX_PROMPT_LOGPROBS
from gateway.http.errors import invalid, longer_than_window
from gateway.speech.forced import forced_grammar


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A prompt in the model's tokens, or a `RemotePrompt` for a model of another server. `echo`: the prompt's text if
    the answer is to repeat it, else None. `continues_text`: the answer continues the prompt's text."""

    token_ids: Sequence[int]
    params: SamplingParams
    """With `max_tokens` and `grammar` set, and the model's sampling defaults."""
    echo: str | None
    continues_text: bool

    @property
    def max_tokens(self) -> int:
        assert self.params.max_tokens is not None
        return self.params.max_tokens


def prepared(
    request: GenerationRequest, encoded: Sequence[Sequence[int]], model: ServedModel, window: int
) -> list[PreparedPrompt]:
    """The prompts of a request from the token ids of each (`encoded`). Prompt and answer are checked against `window`,
    in tokens. (The engine checks token ids.)

    Raises:
        APIError: 400, `context_length_exceeded` if prompt and answer do not fit the window; or parameters that exclude
            each other.
    """
    if isinstance(model.text, RemoteText):
        model.text.require_passable(request)
    grammar = _grammar(request)
    encoded = [_truncated(request, ids, window) for ids in encoded]
    _bound_prompt_logprobs(request, encoded)
    sampling = model.sampling_defaults.applied(request.params, request.unstated)
    prompts = []
    for prompt, ids in zip(request.prompts, encoded, strict=True):
        params = replace(
            sampling,
            max_tokens=_answer_tokens(request, len(ids), window),
            grammar=grammar,
            conversational=isinstance(prompt, Conversation),
        )
        if isinstance(prompt, Gap) and not params.ignore_eos:
            params = replace(params, stop_token_ids=(*params.stop_token_ids, *infilling_of(model.text).ends))
        echo = _echo(prompt, ids, request, model.text) if request.echo else None
        if isinstance(model.text, RemoteText):
            ids = model.text.asked(ids, request, params.max_tokens)
        prompts.append(PreparedPrompt(ids, params, echo, _continues_text(prompt)))
    return prompts


def _truncated(request: GenerationRequest, token_ids: Sequence[int], window: int) -> Sequence[int]:
    """The prompt, truncated as the request asks for, if it does."""
    if request.truncation is None:
        return token_ids
    most = request.truncation.tokens
    if most is None:
        wanted = request.params.max_tokens
        answer = request.default_max_tokens or 1 if wanted is None else wanted
        most = max(0, window - answer)
    if len(token_ids) <= most:
        return token_ids
    return token_ids[len(token_ids) - most :] if request.truncation.keeps_end else token_ids[:most]


def _bound_prompt_logprobs(request: GenerationRequest, encoded: Sequence[Sequence[int]]) -> None:
    """Raises:
    APIError: 400, the request asks for more log-probabilities of prompts than one answer may hold.
    """
    alternatives = request.details.prompt_logprobs
    if alternatives is None:
        return
    entries = sum(map(len, encoded)) * (alternatives + 1)
    if entries > MAX_PROMPT_LOGPROBS:
        message = f"Too many 'prompt_logprobs': {entries} entries, the maximum is {MAX_PROMPT_LOGPROBS}."
        raise invalid("prompt_logprobs", message)


def _answer_tokens(request: GenerationRequest, prompt_tokens: int, window: int) -> int:
    """The maximum length of the answer: the requested one, the default, or the rest of the context window.

    Raises:
        APIError: 400, `context_length_exceeded` if prompt and answer do not fit the window.
    """
    param = request.prompt_param
    if prompt_tokens == 0:
        raise invalid(param, f"Invalid '{param}': the prompt has no tokens.")
    room = window - prompt_tokens
    wanted = request.params.max_tokens
    if room < (1 if wanted is None else min(1, wanted)):
        raise longer_than_window(param, window, f"{prompt_tokens}")
    if wanted is None:
        default = room if request.default_max_tokens is None else request.default_max_tokens
        return min(default, room)
    if wanted > room:
        raise invalid(
            request.limit_param,
            f"This model's maximum context length is {window} tokens. However, you requested "
            f"{prompt_tokens + wanted} tokens ({prompt_tokens} in the {param}, {wanted} in the completion). "
            f"Please reduce the length of the {param} or completion.",
            "context_length_exceeded",
        )
    return wanted


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


def _continues_text(prompt: Prompt) -> bool:
    return prompt.continue_final_message if isinstance(prompt, Conversation) else True


def _echo(prompt: Prompt, token_ids: Sequence[int], request: GenerationRequest, text: TextProcessor) -> str:
    if isinstance(prompt, Conversation):
        return prompt.begun_answer
    assert not isinstance(prompt, Gap), "a gap is never echoed"
    if isinstance(prompt, str) and request.truncation is None:
        return prompt
    return text.decode(token_ids, skip_special_tokens=request.params.skip_special_tokens)
