"""The body of POST /v1/completions."""

from dataclasses import replace

from engine.request import MAX_TOP_LOGPROBS, SamplingParams
from engine.sampling_defaults import SAMPLING_DEFAULTS
from gateway.formats.openai.details import take_details
from gateway.formats.openai.hints import take_hints
from gateway.formats.openai.prompt_schema import plain_prompts
from gateway.formats.openai.sampling import (
    MAX_TOKENS,
    REFUSED,
    take_sampling,
    take_stream,
    take_truncation,
)
from gateway.generation.request import Gap, GenerationRequest, Prompt
from gateway.http.bounds import MAX_CHOICES_PER_REQUEST, MAX_COMPLETION_LOGPROBS, MAX_PROMPTS
from gateway.http.errors import invalid
from gateway.http.fields import Fields

DEFAULT_MAX_TOKENS = 16

REFUSED_COMPLETION: dict[str, tuple[object, ...]] = REFUSED | {
    "prompt_embeds": (),
}


def parse_completion(fields: Fields) -> GenerationRequest:
    """Raises: APIError, InvalidParameter."""
    unstated = fields.unstated(SAMPLING_DEFAULTS)
    model = fields.required_string("model")
    echo = fields.boolean("echo", False)
    prompts = _take_suffix(fields, plain_prompts(fields.take("prompt"), "prompt", MAX_PROMPTS), echo)
    max_tokens = fields.integer("max_tokens", 0 if echo else 1, MAX_TOKENS)
    logprobs = fields.integer("logprobs", 0, MAX_COMPLETION_LOGPROBS)
    streaming = take_stream(fields)
    details = take_details(fields, streaming, logprobs=logprobs, most=MAX_TOP_LOGPROBS)
    asked = [count for count in (logprobs if echo else None, details.prompt_logprobs) if count is not None]
    params = take_sampling(
        fields, max_tokens=max_tokens, logprobs=logprobs, prompt_logprobs=max(asked) if asked else None
    )
    params, best = _take_best(fields, params, streaming.stream)
    if len(prompts) * params.n > MAX_CHOICES_PER_REQUEST:
        param = "n" if best is None else "best_of"
        raise invalid(param, f"Too many choices: the maximum is {MAX_CHOICES_PER_REQUEST} for all prompts together.")
    add_special_tokens = fields.boolean("add_special_tokens", True)
    truncation = take_truncation(fields)
    if truncation is not None and isinstance(prompts[0], Gap):
        raise invalid(
            "truncate_prompt_tokens",
            "'truncate_prompt_tokens' is not supported together with 'suffix'.",
            "unsupported_parameter",
        )
    service_tier = take_hints(fields)
    fields.finish(REFUSED_COMPLETION)
    return GenerationRequest(
        model=model,
        prompts=prompts,
        prompt_param="prompt",
        params=params,
        limit_param=None if max_tokens is None else "max_tokens",
        default_max_tokens=DEFAULT_MAX_TOKENS,
        stream=streaming.stream,
        include_usage=streaming.include_usage,
        service_tier=service_tier,
        echo=echo,
        details=details,
        best=best,
        add_special_tokens=add_special_tokens,
        truncation=truncation,
        unstated=unstated,
    )


def _take_suffix(fields: Fields, prompts: tuple[Prompt, ...], echo: bool) -> tuple[Prompt, ...]:
    """`suffix`: text after the completion of each prompt. An empty one has no effect."""
    suffix = fields.string("suffix")
    if not suffix:
        return prompts
    if echo:
        raise invalid("echo", "'echo' is not supported together with 'suffix'.", "unsupported_parameter")
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if len(texts) < len(prompts):
        raise invalid("suffix", "'suffix' is not supported with prompts of token ids.", "unsupported_parameter")
    return tuple(Gap(text, suffix) for text in texts)


def _take_best(fields: Fields, params: SamplingParams, stream: bool) -> tuple[SamplingParams, int | None]:
    """`best_of`: number of choices to generate; the `n` with the highest mean log-probability are returned."""
    n, best_of = params.n, fields.integer("best_of", 1, MAX_CHOICES_PER_REQUEST)
    if best_of is None or best_of == n:
        return params, None
    if best_of < n:
        raise invalid("best_of", f"'best_of' must be greater than or equal to 'n', which is {n}.")
    if stream:
        raise invalid(
            "best_of", "'best_of' greater than 'n' is not supported when 'stream' is true.", "unsupported_parameter"
        )
    return replace(params, n=best_of, logprobs=params.logprobs or 0), n
